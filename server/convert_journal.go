package server

import (
	"fmt"
	"math"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// maxEntryData is the largest data of a journal entry that is sent; the entry's
// hash covers more than is shown then.
const maxEntryData = 512 << 10

func convertEntry(e jobs.Entry) *macexecv1.Entry {
	data := []byte(e.Data)
	if len(data) > maxEntryData {
		data = fmt.Appendf(nil, `{"omitted_bytes":%d}`, len(data))
	}
	return &macexecv1.Entry{
		Seq: e.Seq, At: timestamp(e.At), Kind: string(e.Kind), Principal: e.Principal, Owner: e.Owner, JobId: e.JobID,
		Event: enum[macexecv1.JobEvent](e.Event), Revision: e.Revision,
		State: enum[macexecv1.JobState](e.State), Phase: enum[macexecv1.JobPhase](e.Phase),
		EndReason: enum[macexecv1.EndReason](e.EndReason), SideEffect: enum[macexecv1.SideEffect](e.SideEffect),
		ToolCallId: e.ToolCallID, RunId: e.RunID, TraceId: e.TraceID, Message: e.Message, Data: data,
		Prev: e.Prev, Hash: e.Hash,
	}
}

func convertEvent(e engine.WatchEvent) *macexecv1.Event {
	out := &macexecv1.Event{Cursor: e.Cursor, Snapshot: e.Snapshot, Job: convertJob(e.Job)}
	if e.Entry != nil {
		out.Entry = convertEntry(*e.Entry)
	}
	if e.Progress != nil {
		out.Progress = convertProgress(*e.Progress)
	}
	return out
}

func convertProgress(p engine.Progress) *macexecv1.Progress {
	out := &macexecv1.Progress{
		JobId: p.JobID, Attempt: int32of(p.Attempt), Phase: enum[macexecv1.JobPhase](p.Phase), Rate: p.Rate, Detail: p.Detail,
	}
	// A tool's words about itself may be no numbers; then nothing is known.
	if p.Percent != nil && !math.IsNaN(*p.Percent) && !math.IsInf(*p.Percent, 0) {
		percent := min(max(*p.Percent, 0), 100)
		out.Percent = &percent
	}
	if p.TimeLeft != nil && *p.TimeLeft >= 0 {
		seconds := p.TimeLeft.Seconds()
		out.TimeLeftSeconds = &seconds
	}
	return out
}
