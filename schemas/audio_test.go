package schemas_test

import (
	"path/filepath"
	"testing"
)

func TestInspectAudio(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tone, cover, silent := filepath.Join(dir, "tone.wav"), filepath.Join(dir, "take:1 [x].mp3"), filepath.Join(dir, "silent.mp4")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "sine=d=2:r=44100", tone)
	picture := filepath.Join(dir, "cover.png")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "color=blue:s=300x300:d=1", "-frames:v", "1", picture)
	media(t, "ffmpeg", "-i", tone, "-i", picture, "-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic", "file:"+cover)
	media(t, "ffmpeg", "-f", "lavfi", "-i", "testsrc2=s=64x64:d=1", silent)
	tool := shipped(t, "inspect_audio")

	got := completed(t, drive(t, tool, arguments(t, "input", tone)))
	if got["duration_seconds"] != 2.0 || got["sample_rate"] != 44100.0 || got["channels"] != 1.0 || got["codec"] != "pcm_s16le" || got["channel_layout"] != "mono" {
		t.Errorf("wav: %v", got)
	}
	got = completed(t, drive(t, tool, arguments(t, "input", cover, "project_id", "default")))
	if got["codec"] != "mp3" || got["container"] != "mp3" || got["bit_rate"].(float64) < 8000 {
		t.Errorf("mp3 with a cover: %v", got)
	}
	if r := drive(t, tool, arguments(t, "input", silent)); r.Stage != "accept" || r.Findings[0].Keyword != "audio_stream" || r.Findings[0].Pointer != "/input" {
		t.Errorf("a silent video: %+v", r)
	}
}
