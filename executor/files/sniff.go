package files

import (
	"bytes"
	"io"
	"os"
	"unicode/utf8"
)

// Kind is the broad class of a file's content. Text is never media, whatever the
// file is called.
type Kind string

// The kinds.
const (
	KindImage    Kind = "image"
	KindAudio    Kind = "audio"
	KindVideo    Kind = "video"    // moving pictures, or a container that may hold them
	KindXML      Kind = "xml"      // SVG too: a program that draws other files, not a picture
	KindText     Kind = "text"     // HTML, JSON, scripts, …
	KindDocument Kind = "document" // PDF
	KindFolder   Kind = "folder"   // never sniffed
	KindEmpty    Kind = "empty"
	KindUnknown  Kind = "unknown"
)

// HeaderSize is how many bytes from a file's beginning [Sniff] makes use of.
const HeaderSize = 4096

// SniffFile sniffs an open regular file, wherever its offset is.
func SniffFile(f *os.File) (mediaType string, kind Kind, err error) {
	header := make([]byte, HeaderSize)
	n, err := f.ReadAt(header, 0)
	if err != nil && err != io.EOF {
		return "", "", explain(f.Name(), err)
	}
	mediaType, kind = Sniff(header[:n])
	return mediaType, kind, nil
}

// Sniff says what a file is by its first bytes alone. An unknown one has the media
// type application/octet-stream.
//
// A header that is text from end to end is text, even when it begins like a
// picture ("BM…", "ID3…", "GIF89a…"): each format below has bytes in its header
// that no text has.
func Sniff(header []byte) (mediaType string, kind Kind) {
	h := header[:min(len(header), HeaderSize)]
	if len(h) == 0 {
		return "application/x-empty", KindEmpty
	}
	if bytes.HasPrefix(h, []byte("%PDF-")) {
		return "application/pdf", KindDocument
	}
	if isUTF8Text(h) {
		return sniffText(bytes.TrimPrefix(h, []byte("\xef\xbb\xbf")))
	}
	if bytes.HasPrefix(h, []byte("\xff\xfe")) || bytes.HasPrefix(h, []byte("\xfe\xff")) {
		return "text/plain", KindText // UTF-16; MPEG layer I, which looks alike, is extinct
	}
	for _, m := range &magics {
		if m.matches(h) {
			return m.mediaType, m.kind
		}
	}
	for _, look := range []func([]byte) (string, Kind, bool){
		sniffRIFF, sniffISO, sniffMatroska, sniffOgg, sniffBMP, sniffMPEGTS, sniffMPEGAudio,
	} {
		if mediaType, kind, ok := look(h); ok {
			return mediaType, kind
		}
	}
	if isOldText(h) {
		return "text/plain", KindText
	}
	return "application/octet-stream", KindUnknown
}

// magic is a format that a fixed string gives away.
type magic struct {
	at        int
	text      string
	mediaType string
	kind      Kind
}

func (m magic) matches(h []byte) bool {
	return len(h) > m.at && bytes.HasPrefix(h[m.at:], []byte(m.text))
}

var magics = [...]magic{
	{0, "\x89PNG\r\n\x1a\n", "image/png", KindImage},
	{0, "\xff\xd8\xff", "image/jpeg", KindImage},
	{0, "GIF87a", "image/gif", KindImage},
	{0, "GIF89a", "image/gif", KindImage},
	{0, "II*\x00", tiff, KindImage},
	{0, "MM\x00*", tiff, KindImage},
	{0, "II+\x00", tiff, KindImage},
	{0, "MM\x00+", tiff, KindImage},
	{0, "8BPS\x00", "image/vnd.adobe.photoshop", KindImage},
	{0, "\x00\x00\x01\x00", "image/vnd.microsoft.icon", KindImage},
	{0, "icns\x00", "image/x-icns", KindImage},
	{0, "\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2", KindImage},
	{0, "\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl", KindImage},
	{0, "\xff\x0a", "image/jxl", KindImage},
	{0, "v/1\x01", "image/x-exr", KindImage},
	{0, "P4\n", "image/x-portable-bitmap", KindImage},
	{0, "P5\n", "image/x-portable-graymap", KindImage},
	{0, "P6\n", "image/x-portable-pixmap", KindImage},
	{0, "fLaC", "audio/flac", KindAudio},
	{0, "caff\x00\x01", "audio/x-caf", KindAudio},
	{0, ".snd\x00", "audio/basic", KindAudio},
	{0, "MThd\x00", "audio/midi", KindAudio},
	{0, "wvpk", "audio/x-wavpack", KindAudio},
	{0, "#!AMR", "audio/amr", KindAudio},
	{0, "\x0b\x77", "audio/ac3", KindAudio},
	{0, "FLV\x01", "video/x-flv", KindVideo},
	{0, "\x00\x00\x01\xba", "video/mpeg", KindVideo},
	{0, "\x00\x00\x01\xb3", "video/mpeg", KindVideo},
	{0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "video/x-ms-asf", KindVideo},
	{0, "PK\x03\x04", "application/zip", KindUnknown},
	{0, "\x1f\x8b\x08", "application/gzip", KindUnknown},
}

// isUTF8Text says whether h is UTF-8 without control characters, but for those that
// texts have. The last character may be cut off.
func isUTF8Text(h []byte) bool {
	for len(h) > 0 {
		r, n := utf8.DecodeRune(h)
		if r == utf8.RuneError && n <= 1 {
			return !utf8.FullRune(h)
		}
		if isControl(r) {
			return false
		}
		h = h[n:]
	}
	return true
}

// isOldText says the same for the one-byte encodings before UTF-8.
func isOldText(h []byte) bool {
	for _, b := range h {
		if isControl(rune(b)) {
			return false
		}
	}
	return true
}

func isControl(r rune) bool {
	switch r {
	case '\t', '\n', '\v', '\f', '\r', '\b', 0x1b:
		return false
	}
	return r < ' ' || r == 0x7f
}

// sniffText tells markup from other text.
func sniffText(h []byte) (string, Kind) {
	h = bytes.TrimLeft(h, " \t\r\n\f\v")
	xml := false
	for {
		switch {
		case hasPrefixFold(h, "<?xml"):
			xml = true
			h = after(h, "?>")
		case bytes.HasPrefix(h, []byte("<!--")):
			h = after(h, "-->")
		case hasPrefixFold(h, "<!doctype html"), hasPrefixFold(h, "<html"):
			return "text/html", KindText
		case hasPrefixFold(h, "<!doctype svg"):
			return "image/svg+xml", KindXML
		case hasPrefixFold(h, "<!doctype"):
			xml = true
			h = after(h, ">")
		default:
			if isSVGElement(h) {
				return "image/svg+xml", KindXML
			}
			for _, tag := range []string{"<head", "<body", "<script", "<title", "<table", "<div", "<p>", "<h1", "<meta"} {
				if !xml && hasPrefixFold(h, tag) {
					return "text/html", KindText
				}
			}
			if xml {
				return "application/xml", KindXML
			}
			return "text/plain", KindText
		}
		h = bytes.TrimLeft(h, " \t\r\n\f\v")
	}
}

// isSVGElement says whether h begins with an svg element, with a namespace prefix
// or without.
func isSVGElement(h []byte) bool {
	if len(h) == 0 || h[0] != '<' {
		return false
	}
	name := h[1:]
	if i := bytes.IndexAny(name, " \t\r\n/>"); i >= 0 {
		name = name[:i]
	}
	if i := bytes.IndexByte(name, ':'); i >= 0 {
		name = name[i+1:]
	}
	return bytes.EqualFold(name, []byte("svg"))
}

func hasPrefixFold(h []byte, prefix string) bool {
	return len(h) >= len(prefix) && bytes.EqualFold(h[:len(prefix)], []byte(prefix))
}

// after is what follows the first end in h; nothing if there is none.
func after(h []byte, end string) []byte {
	_, rest, _ := bytes.Cut(h, []byte(end))
	return rest
}
