//go:build faults

package fault

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// A clock that was set shows another time, and measures what it measured.
func TestNow(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(variable, dir)
	before := time.Now()
	for _, ahead := range []time.Duration{0, time.Second, -time.Hour, 366 * 24 * time.Hour, -366 * 24 * time.Hour} {
		if err := os.WriteFile(filepath.Join(dir, "clock"), []byte(strconv.FormatInt(int64(ahead/time.Second), 10)), 0o600); err != nil {
			t.Fatal(err)
		}
		now := Now()
		after := time.Now()
		if took := now.Sub(before); took < 0 || took > after.Sub(before) {
			t.Errorf("set by %s, %s went by, and between the looks around it %s", ahead, took, after.Sub(before))
		}
		shown := now.Round(0).Add(-ahead)
		if shown.Before(before.Round(0)) || shown.After(after.Round(0)) {
			t.Errorf("set by %s it shows %s, between %s and %s", ahead, now, before, after)
		}
	}
}
