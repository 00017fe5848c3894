package show

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Cell is one place of a table.
type Cell struct {
	Text  string
	Style Style
}

// Table is a list with columns, aligned by characters.
type Table struct {
	Head []string
	Rows [][]Cell
}

// Add appends a row without styles.
func (t *Table) Add(texts ...string) {
	row := make([]Cell, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	t.Rows = append(t.Rows, row)
}

// Write draws the table; styles only with colour. A table without rows is its head.
func (t *Table) Write(w io.Writer, colour bool) error {
	head := make([]Cell, len(t.Head))
	for i, text := range t.Head {
		head[i] = Cell{Text: text, Style: Bold}
	}
	rows := t.Rows
	if len(head) > 0 {
		rows = append([][]Cell{head}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(Line(cell.Text)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			text := Line(cell.Text)
			b.WriteString(cell.Style.paint(text, colour))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Style is how a word stands out on a terminal.
type Style string

// The styles.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Blue   Style = "34"
	Faint  Style = "2"
)

// Paint returns the text in the style, made visible; plain without colour.
func (s Style) Paint(text string, colour bool) string { return s.paint(Line(text), colour) }

func (s Style) paint(text string, colour bool) string {
	if !colour || s == Plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}
