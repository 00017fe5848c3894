package schemas_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// magick makes a picture with whichever ImageMagick this host has.
func magick(t *testing.T, argv ...string) {
	t.Helper()
	program := "convert"
	if _, err := exec.LookPath("magick"); err == nil {
		program = "magick"
	}
	media(t, program, argv...)
}

// pixel reads one pixel as "r,g,b" with 8 bits each.
func pixel(t *testing.T, path, at string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "pixel.rgb")
	magick(t, path, "-crop", "1x1+"+at, "-depth", "8", "rgb:"+raw)
	b, err := os.ReadFile(raw)
	if err != nil || len(b) != 3 {
		t.Fatalf("%v %v", b, err)
	}
	var parts []string
	for _, c := range b {
		switch { // jpeg moves a level by one or two
		case c <= 3:
			parts = append(parts, "0")
		case c >= 252:
			parts = append(parts, "255")
		default:
			parts = append(parts, "?")
		}
	}
	return strings.Join(parts, ",")
}

// orient puts an EXIF orientation into a jpeg.
func orient(t *testing.T, from, to string, orientation uint16) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	tiff := []byte("MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01")
	tiff = binary.BigEndian.AppendUint16(tiff, orientation)
	tiff = append(tiff, 0, 0, 0, 0, 0, 0)
	app := append([]byte("Exif\x00\x00"), tiff...)
	out := append([]byte{}, raw[:2]...)
	out = append(out, 0xff, 0xe1)
	out = binary.BigEndian.AppendUint16(out, uint16(len(app)+2))
	out = append(append(out, app...), raw[2:]...)
	if err := os.WriteFile(to, out, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestInspectImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := shipped(t, "inspect_image")
	for _, tc := range []struct{ file, format string }{
		{"a.png", "png"}, {"b[1].jpg", "jpeg"}, {"-strip.gif", "gif"}, {"c:d.webp", "webp"}, {"@e.tiff", "tiff"}, {"f.bmp", "bmp"},
	} {
		path := filepath.Join(dir, tc.file)
		made := filepath.Join(dir, "made")
		magick(t, "-size", "61x40", "gradient:red-blue", tc.format+":"+made)
		if err := os.Rename(made, path); err != nil {
			t.Fatal(err)
		}
		got := completed(t, drive(t, tool, arguments(t, "input", path)))
		if got["width"] != 61.0 || got["height"] != 40.0 || got["format"] != tc.format || got["orientation"] != 1.0 {
			t.Errorf("%s: %v", tc.file, got)
		}
	}
	plain, turned := filepath.Join(dir, "b[1].jpg"), filepath.Join(dir, "turned.jpg")
	orient(t, plain, turned, 6)
	if got := completed(t, drive(t, tool, arguments(t, "input", turned))); got["width"] != 40.0 || got["height"] != 61.0 || got["orientation"] != 6.0 {
		t.Errorf("turned: %v", got)
	}
}

func TestConvertImageBackground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disc := filepath.Join(dir, "disc.png")
	magick(t, "-size", "100x100", "xc:none", "-fill", "red", "-draw", "circle 50,50 50,20", disc)
	tool := shipped(t, "convert_image")
	for _, tc := range []struct{ background, want string }{{"", "255,255,255"}, {"white", "255,255,255"}, {"#00ff00", "0,255,0"}, {"black", "0,0,0"}} {
		for _, width := range []int{0, 50} {
			pairs := []any{"input", disc, "format", "jpeg", "output", "x.jpg"}
			if tc.background != "" {
				pairs = append(pairs, "background", tc.background)
			}
			if width > 0 {
				pairs = append(pairs, "max_width", width)
			}
			r := drive(t, tool, arguments(t, pairs...))
			got := completed(t, r)
			if p := pixel(t, r.Outputs["image"], "2+2"); p != tc.want {
				t.Errorf("background %q, width %d: pixel %s, want %s", tc.background, width, p, tc.want)
			}
			if width > 0 && got["width"] != 50.0 {
				t.Errorf("%v", got)
			}
		}
	}
}

func TestConvertImageFormats(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, turned := filepath.Join(dir, "source.jpg"), filepath.Join(dir, "turned.jpg")
	magick(t, "-size", "61x40", "gradient:red-blue", "-set", "comment", "the-secret-place", source)
	orient(t, source, turned, 6)
	tool := shipped(t, "convert_image")
	for _, format := range []string{"jpeg", "png", "webp", "tiff", "gif"} {
		r := drive(t, tool, arguments(t, "input", turned, "format", format, "max_height", 30))
		got := completed(t, r)
		if got["format"] != format || got["height"] != 30.0 || got["width"] != 20.0 || got["source_width"] != 40.0 || got["source_height"] != 61.0 {
			t.Errorf("%s: %v", format, got)
		}
		raw, err := os.ReadFile(r.Outputs["image"])
		if err != nil || bytes.Contains(raw, []byte("the-secret-place")) || bytes.Contains(raw, []byte("date:create")) {
			t.Errorf("%s: metadata was carried over (%v)", format, err)
		}
	}
	// Never made larger.
	if got := completed(t, drive(t, tool, arguments(t, "input", source, "format", "png", "max_width", 5000))); got["width"] != 61.0 {
		t.Errorf("made larger: %v", got)
	}
	cmyk := filepath.Join(dir, "cmyk.jpg")
	magick(t, "-size", "20x20", "xc:red", "-colorspace", "CMYK", cmyk)
	r := drive(t, tool, arguments(t, "input", cmyk, "format", "png"))
	completed(t, r)
	if p := pixel(t, r.Outputs["image"], "2+2"); p != "255,0,0" {
		t.Errorf("CMYK red became %s", p)
	}
}

func TestConvertImageRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	picture, cut, evil := filepath.Join(dir, "p.png"), filepath.Join(dir, "cut.png"), filepath.Join(dir, "evil.png")
	magick(t, "-size", "300x300", "plasma:red-blue", picture)
	raw, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "secret.txt")
	for path, content := range map[string][]byte{
		cut:    raw[:len(raw)/2],
		secret: []byte("top secret"),
		evil:   []byte(`<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="text:` + secret + `"/></svg>`),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tool := shipped(t, "convert_image")
	for _, tc := range []struct {
		name     string
		pairs    []any
		stage    string
		keywords []string
	}{
		{"quality of a lossless format", []any{"input", picture, "format", "png", "quality", 5}, "business", []string{"quality_has_meaning"}},
		{"background kept", []any{"input", picture, "format", "webp", "background", "red"}, "business", []string{"background_has_meaning"}},
		{"suffix", []any{"input", picture, "format", "png", "output", "a/b.JPG"}, "business", []string{"output_suffix"}},
		{"no format", []any{"input", picture}, "schema", []string{"required"}},
		{"format in capitals", []any{"input", picture, "format", "JPEG"}, "schema", []string{"enum"}},
		{"background with an option", []any{"input", picture, "format", "jpeg", "background", "-write x"}, "schema", []string{"maxLength", "pattern"}},
		{"cut png", []any{"input", cut, "format", "jpeg"}, "exit", nil},
		{"svg", []any{"input", evil, "format", "png"}, "before", nil},
	} {
		r := drive(t, tool, arguments(t, tc.pairs...))
		if r.Stage != tc.stage || !slices.Equal(keywords(r.Findings), tc.keywords) {
			t.Errorf("%s: stopped at %q with %+v %s\n%s", tc.name, r.Stage, r.Findings, r.Detail, r.Stderr)
		}
	}
}
