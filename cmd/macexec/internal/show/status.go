package show

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Status is a line at the bottom of a terminal that is painted over. A nil
// Status draws nothing.
type Status struct {
	w     io.Writer
	width func() int
	shown string
}

// NewStatus returns a Status on the terminal w that is width columns wide.
func NewStatus(w io.Writer, width func() int) *Status { return &Status{w: w, width: width} }

// Set paints the line.
func (s *Status) Set(text string) {
	if s == nil || text == s.shown {
		return
	}
	runes := []rune(Line(text))
	if width := s.width(); width > 1 && len(runes) > width-1 {
		runes = runes[:width-1]
	}
	s.shown = text
	fmt.Fprintf(s.w, "\r\x1b[2K%s", string(runes))
}

// Clear takes the line away.
func (s *Status) Clear() {
	if s == nil || s.shown == "" {
		return
	}
	s.shown = ""
	fmt.Fprint(s.w, "\r\x1b[2K")
}

// Bar draws a percentage.
func Bar(percent float64) string {
	const width = 24
	percent = min(max(percent, 0), 100)
	full := int(percent / 100 * width)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", width-full) + "]" + fmt.Sprintf(" %3.0f%%", percent)
}

// Size writes bytes in the largest unit that keeps a digit before the point.
func Size(bytes int64) string {
	const step = 1024
	if bytes < step {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes), -1
	for value >= step && unit < 5 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[unit])
}

// Age writes how long ago a time was, in one unit.
func Age(at, now time.Time) string {
	d := now.Sub(at)
	switch {
	case at.IsZero() || at.Unix() == 0:
		return ""
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Seconds writes a duration for a person: "0.42 s", "12.3 s", "3m07s".
func Seconds(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}
