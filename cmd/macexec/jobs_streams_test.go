package main

import (
	"testing"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// A watch ends with the entry that says how its job ended, not with an earlier one that
// comes when the job has ended already.
func TestWatchTellsTheEnd(t *testing.T) {
	t.Parallel()
	const running, completed, unknown = macexecv1.JobState_JOB_STATE_RUNNING, macexecv1.JobState_JOB_STATE_COMPLETED, macexecv1.JobState_JOB_STATE_UNKNOWN
	now := func(state macexecv1.JobState) *macexecv1.Job { return &macexecv1.Job{Revision: 4, State: state} }
	entry := func(revision uint64, state macexecv1.JobState) *macexecv1.Event {
		return &macexecv1.Event{Entry: &macexecv1.Entry{Revision: revision, State: state}, Job: now(completed)}
	}
	snapshot := func(state macexecv1.JobState) *macexecv1.Event {
		return &macexecv1.Event{Snapshot: true, Job: now(state)}
	}
	for name, c := range map[string]struct {
		after  uint64
		events []*macexecv1.Event // the last of them ends it
	}{
		"ended before":    {0, []*macexecv1.Event{snapshot(completed)}},
		"ended meanwhile": {0, []*macexecv1.Event{snapshot(running), entry(2, running), entry(3, unknown), entry(4, completed)}},
		"told again":      {7, []*macexecv1.Event{snapshot(completed), entry(2, running), entry(4, completed)}},
	} {
		all := told{after: c.after, quiet: time.AfterFunc(time.Hour, func() {})}
		for i, e := range c.events {
			if got, want := all.by(e), i == len(c.events)-1; got != want {
				t.Errorf("%s: event %d ends the watch: %t, want %t", name, i, got, want)
			}
		}
		if rang := all.quiet.Stop(); !rang {
			t.Errorf("%s: no clock is running", name)
		}
	}
}
