package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// yardstick is the ratio of a figure that others are compared with.
const yardstick = "1 (the yardstick)"

// row is one figure. ratio and floor may be empty.
type row struct{ what, figure, ratio, floor string }

type table struct{ rows []row }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

func (t *table) print(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "what\tfigure\tratio\tfloor")
	for _, r := range t.rows {
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\n", r.what, r.figure, r.ratio, r.floor)
	}
	return tab.Flush()
}

// atMost says whether a value is within an upper bound, which format shows.
func atMost(value, most float64, format string) string {
	return "≤ " + fmt.Sprintf(format, most) + verdict(value <= most)
}

// atLeast says whether a value reaches a lower bound.
func atLeast(value, least float64, format string) string {
	return "≥ " + fmt.Sprintf(format, least) + verdict(value >= least)
}

func verdict(met bool) string {
	if met {
		return ": met"
	}
	return ": MISSED"
}

// percentile sorts values.
func percentile[T cmp.Ordered](values []T, p float64) T {
	slices.Sort(values)
	return values[min(int(float64(len(values))*p), len(values)-1)]
}

func median[T cmp.Ordered](values []T) T { return percentile(values, 0.5) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) }

func times(a, b float64) string { return fmt.Sprintf("%.2f ×", a/b) }
