package schemas_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func film(t *testing.T, dir, name, size string, argv ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	media(t, "ffmpeg", append(append([]string{"-f", "lavfi", "-i", "testsrc2=d=2:r=25:s=" + size}, argv...), "-preset", "ultrafast", "file:"+path)...)
	return path
}

var withSound = []string{"-f", "lavfi", "-i", "sine=d=2", "-c:v", "libx264", "-c:a", "aac"}

func TestInspectVideo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "inspect_video")
	clip := film(t, dir, "take:1.mp4", "320x240", append(withSound, "-pix_fmt", "yuv420p")...)
	got := completed(t, drive(t, tool, arguments(t, "input", clip)))
	for name, want := range map[string]any{
		"width": 320.0, "height": 240.0, "frame_rate": 25.0, "video_codec": "h264", "has_audio": true,
		"audio_codec": "aac", "audio_channels": 1.0, "audio_sample_rate": 44100.0, "duration_seconds": 2.0, "rotation": 0.0, "pixel_format": "yuv420p",
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	turned := filepath.Join(dir, "turned.mp4")
	media(t, "ffmpeg", "-i", "file:"+clip, "-c", "copy", "-metadata:s:v:0", "rotate=90", turned)
	if got := completed(t, drive(t, tool, arguments(t, "input", turned))); got["width"] != 240.0 || got["height"] != 320.0 || got["rotation"] == 0.0 {
		t.Errorf("turned: %v", got)
	}
	silent := film(t, dir, "silent.mkv", "64x64")
	if got := completed(t, drive(t, tool, arguments(t, "input", silent))); got["has_audio"] != false || got["audio_codec"] != "" || got["duration_seconds"] != 2.0 {
		t.Errorf("silent: %v", got)
	}
	// A picture attached to a sound file is no video.
	picture, cover := filepath.Join(dir, "p.png"), filepath.Join(dir, "cover.mp3")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "color=blue:s=30x30:d=1", "-frames:v", "1", picture)
	media(t, "ffmpeg", "-f", "lavfi", "-i", "sine=d=1", "-i", picture, "-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic", cover)
	if r := drive(t, tool, arguments(t, "input", cover)); r.Stage != "accept" || r.Findings[0].Keyword != "video_stream" {
		t.Errorf("cover: %+v", r)
	}
}

// TestVideoStreams: of several streams the first moving picture and the first
// sound count, wherever a cover picture stands.
func TestVideoStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clip := film(t, dir, "clip.mp4", "320x240", append(withSound, "-pix_fmt", "yuv420p")...)
	picture := filepath.Join(dir, "p.png")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "color=blue:s=30x20:d=1", "-frames:v", "1", picture)
	several := filepath.Join(dir, "several.mp4")
	media(t, "ffmpeg", "-i", picture, "-i", clip, "-f", "lavfi", "-i", "sine=d=2:f=880", "-f", "lavfi", "-i", "testsrc2=d=2:r=25:s=160x120",
		"-map", "0:v", "-map", "2:a", "-map", "1:v", "-map", "1:a", "-map", "3:v", "-ac:a:0", "2", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-preset", "ultrafast",
		"-c:v:0", "copy", "-disposition:v:0", "attached_pic", several)
	got := completed(t, drive(t, shipped(t, "inspect_video"), arguments(t, "input", several)))
	if got["width"] != 320.0 || got["height"] != 240.0 || got["video_codec"] != "h264" || got["has_audio"] != true || got["audio_channels"] != 2.0 {
		t.Errorf("inspected: %v", got)
	}
	got = completed(t, drive(t, shipped(t, "export_video"), arguments(t, "project_id", "p", "input", several, "format", "mkv", "resolution", "source", "include_audio", true)))
	if got["source_width"] != 320.0 || got["width"] != 320.0 || got["height"] != 240.0 || got["audio_channels"] != 2.0 || math.Abs(got["duration_seconds"].(float64)-2) > 0.1 {
		t.Errorf("exported: %v", got)
	}
	cover := filepath.Join(dir, "cover.mp3")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "sine=d=1", "-i", picture, "-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic", cover)
	r := drive(t, shipped(t, "export_video"), arguments(t, "project_id", "p", "input", cover, "format", "mp4", "resolution", "source", "include_audio", true))
	if r.Stage != "accept" || r.Findings[0].Keyword != "video_stream" {
		t.Errorf("cover: %+v", r)
	}
}

func TestExportVideoSizes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "export_video")
	wide := film(t, dir, "wide.mkv", "1280x720")
	odd := film(t, dir, "odd.mp4", "642x482", "-vf", "scale=321:241", "-pix_fmt", "yuv444p")
	tiny := film(t, dir, "tiny.mkv", "2x2", "-c:v", "ffv1")
	clip := film(t, dir, "clip.mp4", "640x480", "-pix_fmt", "yuv420p")
	turned := filepath.Join(dir, "turned.mp4")
	media(t, "ffmpeg", "-i", clip, "-c", "copy", "-metadata:s:v:0", "rotate=90", turned)
	squeezed := film(t, dir, "squeezed.mp4", "720x576", "-vf", "setsar=64/45", "-pix_fmt", "yuv420p")
	for _, tc := range []struct {
		input, resolution string
		width, height     float64
	}{
		{wide, "480p", 854, 480},
		{wide, "4K", 1280, 720},
		{wide, "source", 1280, 720},
		{odd, "source", 320, 240},
		{odd, "480p", 320, 240},
		{tiny, "1080p", 2, 2},
		{turned, "source", 480, 640},
		{turned, "480p", 480, 640},
		{squeezed, "source", 1024, 576},
		{squeezed, "480p", 854, 480},
	} {
		r := drive(t, tool, arguments(t, "project_id", "p", "input", tc.input, "format", "mp4", "resolution", tc.resolution, "include_audio", false))
		got := completed(t, r)
		if tc.input == odd && (got["source_width"] != 321.0 || got["source_height"] != 241.0) {
			t.Errorf("the odd source is not odd: %v", got)
		}
		if got["width"] != tc.width || got["height"] != tc.height || got["has_audio"] != false || got["video_codec"] != "h264" {
			t.Errorf("%s %s: %v", filepath.Base(tc.input), tc.resolution, got)
		}
	}
	raw, dot := filepath.Join(dir, "dot.raw"), filepath.Join(dir, "dot.mkv")
	if err := os.WriteFile(raw, make([]byte, 25), 0o600); err != nil {
		t.Fatal(err)
	}
	media(t, "ffmpeg", "-f", "rawvideo", "-s", "1x1", "-pix_fmt", "gray", "-i", raw, "-c:v", "ffv1", dot)
	if r := drive(t, tool, arguments(t, "project_id", "p", "input", dot, "format", "mp4", "resolution", "source", "include_audio", false)); r.Stage != "accept" || r.Findings[0].Keyword != "picture_size" {
		t.Errorf("1x1: %+v", r)
	}
}

func TestExportVideoFormats(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "export_video")
	clip := film(t, dir, "-y b[1] emoji 🎬 ü\n.mp4", "320x240", append(withSound, "-metadata", "title=the-secret-title", "-pix_fmt", "yuv420p")...)
	for _, format := range []string{"mp4", "mov", "mkv", "webm"} {
		for _, sound := range []bool{true, false} {
			r := drive(t, tool, arguments(t, "project_id", "p", "input", clip, "format", format, "resolution", "source", "include_audio", sound, "output", "x."+format))
			got := completed(t, r)
			if got["has_audio"] != sound || math.Abs(got["duration_seconds"].(float64)-2) > 0.1 || got["frame_rate"] != 25.0 {
				t.Errorf("%s, sound %v: %v", format, sound, got)
			}
			raw, err := os.ReadFile(r.Outputs["video"])
			if err != nil || bytes.Contains(raw, []byte("the-secret-title")) {
				t.Errorf("%s: metadata was carried over (%v)", format, err)
			}
		}
	}
	side := filepath.Join(dir, "side.mkv")
	media(t, "ffmpeg", "-i", "file:"+clip, "-af", "pan=5.1(side)|FL=c0|FR=c0|FC=c0|LFE=c0|SL=c0|SR=c0", "-c:v", "copy", "-c:a", "ac3", side)
	for _, format := range []string{"mp4", "webm"} {
		got := completed(t, drive(t, tool, arguments(t, "project_id", "p", "input", side, "format", format, "resolution", "source", "include_audio", true)))
		if got["audio_channels"] != 6.0 {
			t.Errorf("5.1(side) to %s: %v", format, got)
		}
	}
}

func TestExportVideoRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "export_video")
	call := func(input string, sound bool) string {
		return arguments(t, "project_id", "p", "input", input, "format", "mp4", "resolution", "source", "include_audio", sound)
	}
	silent := film(t, dir, "silent.mp4", "64x64", "-pix_fmt", "yuv420p")
	if r := drive(t, tool, call(silent, true)); r.Stage != "accept" || r.Findings[0].Keyword != "audio_stream" || r.Findings[0].Pointer != "/include_audio" {
		t.Errorf("silent: %+v", r)
	}
	mkv := film(t, dir, "whole.mkv", "320x240", append(withSound, "-g", "10")...)
	raw, err := os.ReadFile(mkv)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(raw)
	for i := range 3000 {
		damaged[len(raw)/2+i] = byte(i*i*7 + i/3)
	}
	back, err := os.ReadFile(silent)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"cut.mkv": raw[:len(raw)/2], "damaged.mkv": damaged, "no-index.mp4": back[:len(back)*3/4], "text.mp4": []byte("1\n2\n3\n")} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := drive(t, tool, call(path, false)); r.Stage == "" {
			t.Errorf("%s: completed with %v", name, r.Result)
		}
	}
	for _, tc := range []struct{ args, keyword, pointer string }{
		{`{"project_id":"p","input":"x","format":"mp4","resolution":"1080P","include_audio":true}`, "enum", "/resolution"},
		{`{"project_id":"p","input":"x","format":"mp4","resolution":"4k","include_audio":true}`, "enum", "/resolution"},
		{`{"project_id":"p","input":"x","format":"mp4","resolution":"4K","include_audio":"true"}`, "type", "/include_audio"},
		{`{"project_id":"p","input":"x","format":"mp4","resolution":"4K","include_audio":true,"codec":"hevc"}`, "additionalProperties", "/codec"},
		{`{"input":"x","format":"mp4","resolution":"4K","include_audio":true}`, "required", ""},
	} {
		r := drive(t, tool, tc.args)
		if r.Stage != "schema" || len(r.Findings) != 1 || r.Findings[0].Keyword != tc.keyword || r.Findings[0].Pointer != tc.pointer || r.Findings[0].Hint == "" {
			t.Errorf("%s: %q %+v", tc.args, r.Stage, r.Findings)
		}
	}
}
