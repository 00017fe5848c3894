package schemas_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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

func noise(t *testing.T, dir, name string, argv ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	media(t, "ffmpeg", append(append([]string{"-f", "lavfi", "-i", "anoisesrc=d=3:a=0.3:r=44100:seed=1"}, argv...), "file:"+path)...)
	return path
}

// loudness is the level of each channel in dB; silence is far below -60.
func loudness(t *testing.T, path string) []float64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ffmpeg", "-nostdin", "-hide_banner", "-i", "file:"+path,
		"-af", "astats=measure_overall=none:measure_perchannel=RMS_level", "-f", "null", "-").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var levels []float64
	for _, m := range regexp.MustCompile(`RMS level dB: (-?[0-9.]+|-inf)`).FindAllSubmatch(out, -1) {
		level, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		levels = append(levels, level)
	}
	return levels
}

func TestConvertAudioFormats(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "convert_audio")
	tone := noise(t, dir, "tone.mp3")
	picture := filepath.Join(dir, "cover.png")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "color=blue:s=300x300:d=1", "-frames:v", "1", picture)
	cover := filepath.Join(dir, "-y take:1 %d [x].mp3")
	media(t, "ffmpeg", "-i", tone, "-i", picture, "-map", "0", "-map", "1", "-c", "copy", "-disposition:v", "attached_pic", "file:"+cover)
	video := filepath.Join(dir, "v.mkv") // the sound is shorter than the picture
	media(t, "ffmpeg", "-f", "lavfi", "-i", "testsrc2=s=64x64:d=6", "-i", tone, "-map", "0", "-map", "1", video)
	for _, source := range []string{cover, video} {
		for format, codec := range map[string]string{"wav": "pcm_s16le", "flac": "flac", "mp3": "mp3", "m4a": "aac", "ogg": "vorbis", "opus": "opus"} {
			got := completed(t, drive(t, tool, arguments(t, "input", source, "format", format, "output", "x."+format)))
			if got["codec"] != codec || got["channels"] != 1.0 || math.Abs(got["duration_seconds"].(float64)-3) > 0.2 {
				t.Errorf("%s to %s: %v", filepath.Base(source), format, got)
			}
		}
	}
	got := completed(t, drive(t, tool, arguments(t, "input", cover, "format", "m4a", "bit_rate", 64000, "sample_rate", 22050, "channels", 2)))
	if got["sample_rate"] != 22050.0 || got["channels"] != 2.0 {
		t.Errorf("%v", got)
	}
	deep := noise(t, dir, "deep.wav", "-c:a", "pcm_s24le", "-ar", "96000")
	for format, codec := range map[string]string{"wav": "pcm_s24le", "flac": "flac", "mp3": "mp3", "opus": "opus", "ogg": "vorbis"} {
		if got := completed(t, drive(t, tool, arguments(t, "input", deep, "format", format))); got["codec"] != codec {
			t.Errorf("24 bits to %s: %v", format, got)
		}
	}
}

// TestConvertAudioLayouts: every layout goes into every format, and no channel
// falls silent on the way.
func TestConvertAudioLayouts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "convert_audio")
	for _, tc := range []struct {
		name     string
		channels int
		argv     []string
	}{
		{"side.ac3", 6, []string{"-af", "pan=5.1(side)|FL=c0|FR=c0|FC=c0|LFE=c0|SL=c0|SR=c0", "-c:a", "ac3"}},
		{"seven.wav", 8, []string{"-af", "pan=7.1|FL=c0|FR=c0|FC=c0|LFE=c0|BL=c0|BR=c0|SL=c0|SR=c0"}},
		{"quad.wav", 4, []string{"-af", "pan=quad|FL=c0|FR=c0|BL=c0|BR=c0"}},
		{"three.wav", 3, []string{"-af", "aeval=val(0)|val(0)|val(0):c=3.0"}},
		{"five.wav", 5, []string{"-af", "pan=5.0(side)|FL=c0|FR=c0|FC=c0|SL=c0|SR=c0"}},
		{"mono.wav", 1, nil},
	} {
		source := noise(t, dir, tc.name, append(tc.argv, "-t", "1")...)
		formats := []string{"opus", "m4a", "mp3"}
		if tc.channels > 4 { // the orders of channels that differ most
			formats = append(formats, "wav", "ogg", "flac")
		}
		for _, format := range formats {
			want := tc.channels
			if format == "mp3" {
				want = min(want, 2)
			}
			r := drive(t, tool, arguments(t, "input", source, "format", format))
			got := completed(t, r)
			if got["channels"] != float64(want) {
				t.Errorf("%s to %s: %v", tc.name, format, got)
				continue
			}
			levels := loudness(t, r.Outputs["audio"])
			if len(levels) != want {
				t.Errorf("%s to %s: levels %v", tc.name, format, levels)
			}
			for channel, level := range levels {
				if level < -60 && !(channel == 3 && want >= 6) { // LFE loses what is not deep
					t.Errorf("%s to %s: channel %d is silent (%v dB)", tc.name, format, channel, level)
				}
			}
		}
	}
}

func TestConvertAudioRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "convert_audio")
	whole := map[string]string{}
	for _, name := range []string{"a.wav", "a.mp3", "a.flac", "a.mkv"} {
		whole[name] = noise(t, dir, name)
	}
	whole["front.m4a"] = noise(t, dir, "front.m4a", "-movflags", "+faststart")
	whole["back.m4a"] = noise(t, dir, "back.m4a")
	for name, path := range whole {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cut := filepath.Join(dir, "cut-"+name)
		if err := os.WriteFile(cut, raw[:len(raw)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if r := drive(t, tool, arguments(t, "input", cut, "format", "wav")); r.Stage == "" {
			t.Errorf("%s cut in half: completed with %v", name, r.Result)
		}
	}
	silent := filepath.Join(dir, "silent.mp4")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "testsrc2=s=64x64:d=1", silent)
	for _, tc := range []struct {
		pairs   []any
		stage   string
		keyword string
	}{
		{[]any{"input", silent, "format", "mp3"}, "accept", "audio_stream"},
		{[]any{"input", silent, "format", "wav", "bit_rate", 64000}, "business", "bit_rate_has_meaning"},
		{[]any{"input", silent, "format", "mp3", "channels", 6}, "business", "mp3_limits"},
		{[]any{"input", silent, "format", "opus", "sample_rate", 44100}, "business", "opus_sample_rate"},
		{[]any{"input", silent, "format", "m4a", "sample_rate", 192000}, "business", "m4a_limits"},
		{[]any{"input", silent, "format", "m4a", "output", "x.MP3"}, "business", "output_suffix"},
		{[]any{"input", silent, "format", "m4a", "channels", 9}, "schema", "maximum"},
	} {
		r := drive(t, tool, arguments(t, tc.pairs...))
		if r.Stage != tc.stage || len(r.Findings) != 1 || r.Findings[0].Keyword != tc.keyword || r.Findings[0].Hint == "" {
			t.Errorf("%v: %q %+v", tc.pairs, r.Stage, r.Findings)
		}
	}
}
