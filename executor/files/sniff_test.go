package files_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/macexec/macexec/executor/files"
)

func ftyp(brands ...string) string {
	body := "ftyp" + brands[0] + "\x00\x00\x02\x00" + strings.Join(brands[1:], "")
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))) + body + "\x00\x00\x00\x08free"
}

func ogg(packet string) string {
	return "OggS\x00\x02" + strings.Repeat("\x00", 20) + "\x01" + string(rune(len(packet))) + packet + "\x00\x00"
}

var longText = strings.Repeat("a line of plain words\n", 300)

// sniffCases are the first bytes of real formats, and of what looks like them.
var sniffCases = []struct {
	name, header, mediaType string
	kind                    files.Kind
}{
	{"nothing", "", "application/x-empty", files.KindEmpty},
	{"png", "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "image/png", files.KindImage},
	{"jpeg jfif", "\xff\xd8\xff\xe0\x00\x10JFIF\x00", "image/jpeg", files.KindImage},
	{"jpeg exif", "\xff\xd8\xff\xe1\x00\x10Exif\x00", "image/jpeg", files.KindImage},
	{"gif", "GIF89a\x01\x00\x01\x00\x80\x00\x00", "image/gif", files.KindImage},
	{"webp", "RIFF\x24\x00\x00\x00WEBPVP8 ", "image/webp", files.KindImage},
	{"tiff little", "II*\x00\x08\x00\x00\x00", "image/tiff", files.KindImage},
	{"tiff big", "MM\x00*\x00\x00\x00\x08", "image/tiff", files.KindImage},
	{"bmp", "BM\x46\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00", "image/bmp", files.KindImage},
	{"heic", ftyp("heic", "mif1", "heic"), "image/heic", files.KindImage},
	{"heic in mif1", ftyp("mif1", "mif1", "heic"), "image/heic", files.KindImage},
	{"heif", ftyp("mif1", "mif1"), "image/heif", files.KindImage},
	{"avif", ftyp("avif", "mif1", "miaf"), "image/avif", files.KindImage},
	{"avif in mif1", ftyp("mif1", "avif"), "image/avif", files.KindImage},
	{"wav", "RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00", "audio/wav", files.KindAudio},
	{"wav 64", "RF64\xff\xff\xff\xffWAVEds64", "audio/wav", files.KindAudio},
	{"mp3 id3", "ID3\x04\x00\x00\x00\x00\x00\x23TSSE", "audio/mpeg", files.KindAudio},
	{"mp3 bare", "\xff\xfb\x90\x64\x00\x0f", "audio/mpeg", files.KindAudio},
	{"mp3 two frames", "\xff\xfb\x90\x64" + strings.Repeat("\x00", 413) + "\xff\xfb\x90\x64\x00", "audio/mpeg", files.KindAudio},
	{"mp3 second frame missing", "\xff\xfb\x90\x64" + strings.Repeat("\x00", 800), "application/octet-stream", files.KindUnknown},
	{"flac", "fLaC\x00\x00\x00\x22", "audio/flac", files.KindAudio},
	{"ogg vorbis", ogg("\x01vorbis\x00"), "audio/ogg", files.KindAudio},
	{"ogg opus", ogg("OpusHead\x01"), "audio/opus", files.KindAudio},
	{"ogg theora", ogg("\x80theora\x03"), "video/ogg", files.KindVideo},
	{"ogg cut", "OggS\x00", "audio/ogg", files.KindAudio},
	{"aac adts", "\xff\xf1\x50\x80\x02\x1f\xfc" + strings.Repeat("\x00", 3), "audio/aac", files.KindAudio},
	{"m4a", ftyp("M4A ", "M4A ", "isom"), "audio/mp4", files.KindAudio},
	{"aiff", "FORM\x00\x00\x00\x2eAIFFCOMM", "audio/aiff", files.KindAudio},
	{"aifc", "FORM\x00\x00\x00\x2eAIFCFVER", "audio/aiff", files.KindAudio},
	{"caf", "caff\x00\x01\x00\x00desc", "audio/x-caf", files.KindAudio},
	{"mp4", ftyp("isom", "isom", "iso2", "avc1", "mp41"), "video/mp4", files.KindVideo},
	{"m4v", ftyp("M4V ", "M4V "), "video/mp4", files.KindVideo},
	{"mp4 that lists M4A", ftyp("isom", "M4A "), "video/mp4", files.KindVideo},
	{"mov", ftyp("qt  ", "qt  "), "video/quicktime", files.KindVideo},
	{"mov without ftyp", "\x00\x00\x00\x08wide\x00\x00\x10\x00mdat", "video/quicktime", files.KindVideo},
	{"3gp", ftyp("3gp4", "isom"), "video/3gpp", files.KindVideo},
	{"mkv", "\x1a\x45\xdf\xa3\xa3\x42\x86\x81\x01\x42\x82\x88matroska", "video/x-matroska", files.KindVideo},
	{"webm", "\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm", "video/webm", files.KindVideo},
	{"avi", "RIFF\x24\x00\x00\x00AVI LIST", "video/x-msvideo", files.KindVideo},
	{"mpegts", strings.Repeat("G"+strings.Repeat("\x00", 187), 3), "video/mp2t", files.KindVideo},
	{"m2ts", strings.Repeat("\x00\x00\x00\x00G"+strings.Repeat("\x01", 187), 3), "video/mp2t", files.KindVideo},
	{"one G", "G" + strings.Repeat("\x00", 600), "application/octet-stream", files.KindUnknown},
	{"pdf", "%PDF-1.7\n%\xe2\xe3\xcf\xd3", "application/pdf", files.KindDocument},
	{"svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", files.KindXML},
	{"svg after a prolog", "\xef\xbb\xbf<?xml version='1.0'?>\n<!-- <html> -->\n<!DOCTYPE svg PUBLIC>\n<svg>", "image/svg+xml", files.KindXML},
	{"svg with a prefix", "<?xml version='1.0'?><s:svg xmlns:s='x'>", "image/svg+xml", files.KindXML},
	{"xml", "<?xml version='1.0'?><plist>", "application/xml", files.KindXML},
	{"html", "\n <!DOCTYPE HTML><title>404</title>", "text/html", files.KindText},
	{"html without a doctype", "<html lang=en>", "text/html", files.KindText},
	{"not svg", "<svgx>", "text/plain", files.KindText},
	{"text", longText, "text/plain", files.KindText},
	{"one letter", "a", "text/plain", files.KindText},
	{"text, character cut off", strings.Repeat("x", files.HeaderSize-1) + "é", "text/plain", files.KindText},
	{"latin-1", "caf\xe9 cr\xe8me br\xfbl\xe9e", "text/plain", files.KindText},
	{"utf-16", "\xff\xfeh\x00i\x00", "text/plain", files.KindText},
	{"json", `{"a": 1}`, "text/plain", files.KindText},
	{"mvg", "push graphic-context\nimage over 0,0 0,0 'text:/etc/passwd'\n", "text/plain", files.KindText},
	// Text never becomes media, whatever it begins with.
	{"text BM", "BM" + longText, "text/plain", files.KindText},
	{"text ID3", "ID3 tags are " + longText, "text/plain", files.KindText},
	{"text GIF89a", "GIF89a is a format. " + longText, "text/plain", files.KindText},
	{"text RIFF", "RIFFXXXXWAVE" + longText, "text/plain", files.KindText},
	{"text fLaC", "fLaC" + longText, "text/plain", files.KindText},
	{"text OggS", "OggS" + longText, "text/plain", files.KindText},
	{"text ftyp", "1234ftypisom" + longText, "text/plain", files.KindText},
	{"text G", strings.Repeat("G"+strings.Repeat("x", 187), 5), "text/plain", files.KindText},
	{"text P6", "P6\n2 2\n255\n" + longText, "text/plain", files.KindText},
	{"numbers", "1\n2\n3\n4\n5\n", "text/plain", files.KindText},
	{"zeros", strings.Repeat("\x00", 4096), "application/octet-stream", files.KindUnknown},
	{"zip", "PK\x03\x04\x14\x00", "application/zip", files.KindUnknown},
	{"elf", "\x7fELF\x02\x01\x01\x00", "application/octet-stream", files.KindUnknown},
}

func TestSniff(t *testing.T) { // kind B42
	t.Parallel()
	for _, c := range sniffCases {
		if mediaType, kind := files.Sniff([]byte(c.header)); mediaType != c.mediaType || kind != c.kind {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, mediaType, kind, c.mediaType, c.kind)
		}
	}
}

// The same over files that real tools make.
func TestSniffRealFiles(t *testing.T) {
	t.Parallel()
	ffmpeg, err := exec.LookPath("ffmpeg")
	if err != nil {
		t.Skip("NOT TESTED: no ffmpeg")
	}
	const video, audio = "testsrc=size=64x48:rate=10:duration=0.5", "sine=frequency=440:duration=0.5"
	made := 0
	for name, args := range map[string][]string{
		"a.mp4": {"-f", "lavfi", "-i", video}, "a.mov": {"-f", "lavfi", "-i", video}, "a.mkv": {"-f", "lavfi", "-i", video},
		"a.webm": {"-f", "lavfi", "-i", video, "-c:v", "libvpx"}, "a.avi": {"-f", "lavfi", "-i", video},
		"a.ts": {"-f", "lavfi", "-i", video}, "a.m2ts": {"-f", "lavfi", "-i", video}, "a.mpg": {"-f", "lavfi", "-i", video, "-r", "25"},
		"a.gif": {"-f", "lavfi", "-i", video}, "a.png": {"-f", "lavfi", "-i", video, "-frames:v", "1"},
		"a.jpg": {"-f", "lavfi", "-i", video, "-frames:v", "1"}, "a.bmp": {"-f", "lavfi", "-i", video, "-frames:v", "1"},
		"a.tiff": {"-f", "lavfi", "-i", video, "-frames:v", "1"}, "a.webp": {"-f", "lavfi", "-i", video, "-frames:v", "1"},
		"a.wav": {"-f", "lavfi", "-i", audio}, "a.mp3": {"-f", "lavfi", "-i", audio}, "a.flac": {"-f", "lavfi", "-i", audio},
		"a.ogg": {"-f", "lavfi", "-i", audio, "-c:a", "libvorbis"}, "a.opus": {"-f", "lavfi", "-i", audio},
		"a.aac": {"-f", "lavfi", "-i", audio}, "a.m4a": {"-f", "lavfi", "-i", audio}, "a.aiff": {"-f", "lavfi", "-i", audio},
		"a.caf": {"-f", "lavfi", "-i", audio}, "b.mp3": {"-f", "lavfi", "-i", audio, "-id3v2_version", "0", "-write_xing", "0"},
	} {
		path := filepath.Join(t.TempDir(), name)
		args = append([]string{"-nostdin", "-v", "error", "-y"}, args...)
		if out, err := exec.Command(ffmpeg, append(args, path)...).CombinedOutput(); err != nil {
			t.Logf("NOT TESTED: %s cannot be made here: %v %s", name, err, out)
			continue
		}
		made++
		got, gotKind, err := files.SniffFile(open(t, path))
		must(t, err)
		claimed, kind, ok := files.ByExtension(name)
		if !ok || got != claimed || gotKind != kind {
			t.Errorf("%s: %s, %s; its name claims %s, %s", name, got, gotKind, claimed, kind)
		}
	}
	if made < 5 {
		t.Skipf("NOT TESTED enough: only %d files could be made", made)
	}
}

func TestSniffFileIgnoresTheOffset(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	write(t, path, sniffCases[1].header)
	f := open(t, path)
	_, _ = f.Seek(5, 0)
	if mediaType, _, err := files.SniffFile(f); err != nil || mediaType != "image/png" {
		t.Error(mediaType, err)
	}
	if _, _, err := files.SniffFile(open(t, os.TempDir())); err == nil {
		t.Error("a folder was sniffed")
	}
}

func FuzzSniff(f *testing.F) {
	for _, c := range sniffCases {
		f.Add([]byte(c.header))
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		mediaType, kind := files.Sniff(header)
		if mediaType == "" || kind == "" || (kind == files.KindEmpty) != (len(header) == 0) {
			t.Fatalf("%q, %q", mediaType, kind)
		}
		media := kind == files.KindImage || kind == files.KindAudio || kind == files.KindVideo
		if class, _, _ := strings.Cut(mediaType, "/"); media && class != string(kind) {
			t.Fatalf("%q is %q", mediaType, kind)
		}
		printable := bytes.IndexFunc(header, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }) < 0
		if media && printable {
			t.Fatalf("text %q is %q", header, mediaType)
		}
	})
}
