package schemas_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// frames lists the pictures that a run made.
func frames(t *testing.T, r run) []string {
	t.Helper()
	entries, err := os.ReadDir(r.Outputs["frames"])
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestExtractFrames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "extract_frames")
	clip := film(t, dir, "take:1.mp4", "320x240", append(withSound, "-pix_fmt", "yuv420p")...)
	// 0.04 s is the distance of the clip's own frames.
	for name, test := range map[string]struct {
		more          []any
		frames        int
		width, height float64
	}{
		"all":       {[]any{"every_seconds", 0.04, "max_frames", 1000}, 50, 320, 240},
		"some":      {[]any{"every_seconds", 0.5, "max_frames", 1000}, 4, 320, 240},
		"few":       {[]any{"every_seconds", 0.5, "max_frames", 3}, 3, 320, 240},
		"one":       {[]any{"every_seconds", 3600, "max_frames", 10}, 1, 320, 240},
		"a part":    {[]any{"every_seconds", 0.1, "max_frames", 1000, "start_seconds", 1, "end_seconds", 1.5}, 5, 320, 240},
		"small":     {[]any{"every_seconds", 1, "max_frames", 1000, "width", 160}, 2, 160, 120},
		"no larger": {[]any{"every_seconds", 1, "max_frames", 1000, "width", 1000}, 2, 320, 240},
		"the rest":  {[]any{"every_seconds", 0.5, "max_frames", 1000, "start_seconds", 1.25}, 2, 320, 240},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := drive(t, tool, arguments(t, append([]any{"project_id", "p", "input", clip}, test.more...)...))
			got := completed(t, r)
			names := frames(t, r)
			if got["frames"] != float64(test.frames) || got["width"] != test.width || got["height"] != test.height || len(names) != test.frames {
				t.Errorf("%v with %v, want %+v", got, names, test)
			}
			for i, n := range names {
				if n != fmt.Sprintf("frame-%05d.png", i+1) {
					t.Errorf("picture %d is called %s", i+1, n)
				}
			}
		})
	}
	turned := filepath.Join(dir, "turned.mp4")
	media(t, "ffmpeg", "-i", "file:"+clip, "-c", "copy", "-metadata:s:v:0", "rotate=90", turned)
	if got := completed(t, drive(t, tool, arguments(t, "project_id", "p", "input", turned, "every_seconds", 1, "max_frames", 5))); got["width"] != 240.0 || got["height"] != 320.0 {
		t.Errorf("turned: %v", got)
	}
	wide := filepath.Join(dir, "wide.mp4")
	media(t, "ffmpeg", "-i", "file:"+clip, "-vf", "setsar=2", "-an", wide)
	if got := completed(t, drive(t, tool, arguments(t, "project_id", "p", "input", wide, "every_seconds", 1, "max_frames", 5))); got["width"] != 640.0 || got["height"] != 240.0 {
		t.Errorf("wide pixels: %v", got)
	}
}

func TestExtractFramesRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "extract_frames")
	clip := film(t, dir, "clip.mkv", "64x64", append(withSound, "-pix_fmt", "yuv420p")...)
	sound := filepath.Join(dir, "sound.mp4")
	media(t, "ffmpeg", "-f", "lavfi", "-i", "sine=d=1", "-c:a", "aac", sound)
	whole, err := os.ReadFile(clip)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.mkv")
	if err := os.WriteFile(cut, whole[:len(whole)/3], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		stage, keyword string
		args           []any
	}{
		"range":         {"business", "range", []any{"input", clip, "every_seconds", 1, "max_frames", 5, "start_seconds", 1, "end_seconds", 1}},
		"too many":      {"schema", "maximum", []any{"input", clip, "every_seconds", 1, "max_frames", 1001}},
		"too often":     {"schema", "minimum", []any{"input", clip, "every_seconds", 0.001, "max_frames", 10}},
		"beyond":        {"accept", "start", []any{"input", clip, "every_seconds", 1, "max_frames", 5, "start_seconds", 2.5}},
		"without video": {"accept", "video_stream", []any{"input", sound, "every_seconds", 1, "max_frames", 5}},
		"cut":           {"", "", []any{"input", cut, "every_seconds", 0.04, "max_frames", 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := drive(t, tool, arguments(t, append([]any{"project_id", "p"}, test.args...)...))
			if test.stage == "" { // by whichever it is found
				if r.Stage != "exit" && r.Stage != "output" && r.Stage != "verify" && r.Stage != "before" {
					t.Errorf("a file that was cut off: %+v", r)
				}
				return
			}
			if r.Stage != test.stage || len(r.Findings) != 1 || r.Findings[0].Keyword != test.keyword {
				t.Errorf("%s %+v, want %s %s", r.Stage, r.Findings, test.stage, test.keyword)
			}
		})
	}
}
