package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// An artifact goes into the folder and nowhere else, and two never into one place.
func TestPlaceOf(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{}
	for _, c := range []struct{ artifact, own, want string }{
		{"output", "small.mp4", "small.mp4"},
		{"thumbnail", "small.mp4", "thumbnail"},
		{"frames/f-1.png", "f-1.png", "frames/f-1.png"},
		{"frames/f-2.png", "f-2.png", "frames/f-2.png"},
		{"masks/f-1.png", "f-1.png", "masks/f-1.png"},
		{"report", "../../etc/passwd", "report"},
		{"..", "..", "artifact"},
		{"../x", "x", "artifact/x"},
		{"a/../../x", "x", "a/artifact"},
		{"log", "", "log"},
	} {
		got := placeOf(c.artifact, c.own, taken)
		if got != filepath.FromSlash(c.want) {
			t.Errorf("%s (%s) goes to %s, want %s", c.artifact, c.own, got, c.want)
		}
		if !filepath.IsLocal(got) || strings.Contains(got, "..") {
			t.Errorf("%s (%s) goes to %s, out of the folder", c.artifact, c.own, got)
		}
	}
}
