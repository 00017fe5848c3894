package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text for one line of a terminal: control characters, those that
// turn the direction of writing, and bytes that are not UTF-8 are shown as escapes.
func Line(text string) string { return visible(text, "") }

// Text is Line for text of several lines: line feeds and tabs stay.
func Text(text string) string { return visible(text, "\n\t") }

func visible(text, keep string) string {
	if strings.IndexFunc(text, func(r rune) bool { return hidden(r, keep) }) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		b.WriteString(drawn(r, text[:size], keep))
		text = text[size:]
	}
	return b.String()
}

// hidden reports whether a rune does not show itself. U+FFFD counts, since a bad
// byte is decoded to it; drawn tells the two apart.
func hidden(r rune, keep string) bool {
	return r == utf8.RuneError || !unicode.IsGraphic(r) && !strings.ContainsRune(keep, r)
}

func drawn(r rune, raw, keep string) string {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		return fmt.Sprintf(`\x%02x`, raw[0])
	case r == utf8.RuneError || !hidden(r, keep):
		return raw
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r == '\r':
		return `\r`
	case r < utf8.RuneSelf:
		return fmt.Sprintf(`\x%02x`, r)
	case r <= 0xffff:
		return fmt.Sprintf(`\u%04x`, r)
	default:
		return fmt.Sprintf(`\U%08x`, r)
	}
}

// Writer passes a stream on as Text does, also where a character is cut in two by
// the writes. A carriage return becomes a line feed, since it would let a line be
// painted over.
type Writer struct {
	w        io.Writer
	rest     []byte // the beginning of a character
	returned bool   // the last character was a carriage return
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

func (w *Writer) Write(p []byte) (int, error) {
	text := slices.Concat(w.rest, p)
	w.rest = nil
	var b strings.Builder
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			w.rest = text
			break
		}
		r, size := utf8.DecodeRune(text)
		if r != '\n' || !w.returned {
			if r == '\r' {
				b.WriteByte('\n')
			} else {
				b.WriteString(drawn(r, string(text[:size]), "\n\t"))
			}
		}
		w.returned = r == '\r'
		text = text[size:]
	}
	if _, err := io.WriteString(w.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what is left of a character that never came to its end.
func (w *Writer) Flush() error {
	rest := w.rest
	w.rest = nil
	_, err := io.WriteString(w.w, Text(string(rest)))
	return err
}
