package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// An artifact goes into the folder and nowhere else, and two never into one place.
func TestPlaceOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ artifact, want string }{
		{"output", "output"},
		{"frames/f-1.png", "frames/f-1.png"},
		{"masks/f-1.png", "masks/f-1.png"},
		{"..", "artifact"},
		{"../x", "artifact/x"},
		{"a/../../x", "a/artifact"},
		{"", "artifact"},
	} {
		got := placeOf(c.artifact)
		if got != filepath.FromSlash(c.want) {
			t.Errorf("%s goes to %s, want %s", c.artifact, got, c.want)
		}
		if !filepath.IsLocal(got) || strings.Contains(got, "..") {
			t.Errorf("%s goes to %s, out of the folder", c.artifact, got)
		}
	}
}
