package show_test

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/cmd/macexec/internal/show"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain":                 "plain",
		"žluťoučký Ω→ \u00a0":   "žluťoučký Ω→ \u00a0",
		"a\x1b[31mred":          `a\x1b[31mred`,
		"a\nb\tc\rd":            `a\nb\tc\rd`,
		"\x00\x7f\u0085":        `\x00\x7f\u0085`,
		"exe\u202egpj.\u2066x":  `exe\u202egpj.\u2066x`,
		"\u200b\ufeff\u2028":    `\u200b\ufeff\u2028`,
		"caf\xe9":               `caf\xe9`,
		"\ufffd":                "\ufffd",
		"\U000e0041":            `\U000e0041`,
		"cut \xe2\x82 and more": `cut \xe2\x82 and more`,
	} {
		if got := show.Line(text); got != want {
			t.Errorf("Line(%q) = %q, want %q", text, got, want)
		}
	}
	if got := show.Text("a\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("Text keeps lines: got %q", got)
	}
}

func TestWriterKeepsCharactersTogether(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	w := show.NewWriter(&b)
	for _, piece := range []string{"caf\xc3", "\xa9 \xff", "\r", "\nnext\rover\x1b[2K", "\xe2\x82"} {
		if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "café \\xff\nnext\nover\\x1b[2K\\xe2\\x82"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func FuzzWriter(f *testing.F) {
	f.Add("caf\xc3\xa9\x1b[0m", 4)
	f.Add("\xff\xfe\r\n\r", 1)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		cut = min(max(cut, 0), len(text))
		var b strings.Builder
		w := show.NewWriter(&b)
		for _, piece := range []string{text[:cut], text[cut:]} {
			if _, err := w.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(b.String()) {
			t.Fatalf("%q became %q, which is not UTF-8", text, b.String())
		}
		for _, r := range b.String() {
			if !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q became %q, which holds %U", text, b.String(), r)
			}
		}
		if got := show.Line(text); strings.ContainsFunc(got, unicode.IsControl) {
			t.Fatalf("Line(%q) = %q", text, got)
		}
	})
}

func TestTableAlignsByCharacters(t *testing.T) {
	t.Parallel()
	table := show.Table{Head: []string{"ID", "STATE", "NOTE"}}
	table.Add("žž", "running", "a")
	table.Rows = append(table.Rows, []show.Cell{{Text: "x\x1by"}, {Text: "ok", Style: show.Green}, {Text: "b"}})
	var plain, coloured strings.Builder
	if err := table.Write(&plain, false); err != nil {
		t.Fatal(err)
	}
	want := "ID      STATE    NOTE\nžž      running  a\nx\\x1by  ok       b\n"
	if diff := cmp.Diff(want, plain.String()); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	if err := table.Write(&coloured, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(coloured.String(), "\x1b[32mok\x1b[0m       b") {
		t.Errorf("colour moves the columns: %q", coloured.String())
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	s := show.NewStatus(&b, func() int { return 6 })
	s.Set("1234567")
	s.Set("1234567")
	s.Clear()
	s.Clear()
	if want := "\r\x1b[2K12345\r\x1b[2K"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	var none *show.Status
	none.Set("x")
	none.Clear()
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for got, want := range map[string]string{
		show.Bar(50):                            "[############------------]  50%",
		show.Bar(130):                           "[########################] 100%",
		show.Size(0):                            "0 B",
		show.Size(1023):                         "1023 B",
		show.Size(1536):                         "1.5 KiB",
		show.Size(5 << 30):                      "5.0 GiB",
		show.Age(now.Add(-90*time.Second), now): "1m",
		show.Age(now.Add(-3*24*time.Hour), now): "3d",
		show.Age(now.Add(time.Hour), now):       "0s",
		show.Age(time.Time{}, now):              "",
		show.Seconds(0.4242):                    "0.42 s",
		show.Seconds(12.34):                     "12.3 s",
		show.Seconds(187):                       "3m7s",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
