package executor

import (
	"errors"
	"testing"
)

// While the folder of a job is being removed, others are looked at and begun.
func TestRemovalHoldsUpNobody(t *testing.T) {
	t.Parallel()
	x, err := New(Options{Root: t.TempDir(), Keeper: []string{"/nonexistent"}, BootSession: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"going", "other"} {
		a, err := x.Prepare(job, 1)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	free, err := x.seize("going")
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	if found, err := x.Inspect("other", 1); err != nil || found.Kind != NeverStarted {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := x.Prepare("going", 1); !errors.Is(err, ErrHeld) {
		t.Errorf("the one that is being removed: %v", err)
	}
}
