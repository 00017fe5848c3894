package endtoend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// A cell may begin with a deed, call.STANDS:DEED, which is why its call does not run. The
// call stands in one of two places: asked, where a person is to decide; queued, since the
// host is paused. Then
//
//	deny     a person says no
//	cancel   the caller asks for a stop
//	expire   nobody decides in time
//	late     its start_by passes
//	changed  what the call is about is changed, and then a person says yes
//
// Or call.twice:same and call.twice:other: two callers come at once with one key, with the
// same call, or each with another.

// otherContent is what a file holds after somebody else has changed it.
const otherContent = "other"

// oldInput is more than one piece of a copy.
var oldInput = strings.Repeat("input ", 200_000) //nolint:gochecknoglobals // a constant

// takesInput reports whether the call names a file to be taken in.
func (w *walker) takesInput() bool {
	return w.deed.fault == "changed" || slices.ContainsFunc(w.c.steps, func(s step) bool {
		return strings.HasPrefix(s.point, "stage.") || strings.HasPrefix(s.point, "copy.")
	})
}

// soon is long enough for a call to be accepted, on most hosts.
const soon = 2 * time.Second

// expiry is for how many seconds a person is waited for.
func (w *walker) expiry() string {
	if w.deed.fault == "expire" {
		return fmt.Sprint(soon.Seconds())
	}
	return "86400"
}

// makeWait lets the call wait where its deed is done.
func (w *walker) makeWait() {
	w.t.Helper()
	if w.deed.point == "call.queued" {
		w.setMode(macexecv1.HostMode_HOST_MODE_PAUSED)
	}
	w.startSoon(w.req, soon)
}

// startSoon gives a call that is to be too late its start_by. A host that is busier than
// that refuses the call, whose key is free then.
func (w *walker) startSoon(req *macexecv1.SubmitJobRequest, wait time.Duration) {
	if w.deed.fault != "late" {
		return
	}
	if req.GetOptions() == nil {
		req.Options = &macexecv1.Options{}
	}
	req.Options.StartBy = timestamppb.New(time.Now().Add(wait))
}

// decide does what is to be done with a job that waits.
func (w *walker) decide(ctx context.Context, job *macexecv1.Job) error {
	state := job.GetState()
	if state == awaiting && w.deed.point != "call.asked" {
		if err := w.agree(ctx, job); err != nil {
			return err
		}
		state = queued
	}
	if state != map[string]macexecv1.JobState{"call.asked": awaiting, "call.queued": queued}[w.deed.point] {
		return nil
	}
	var err error
	switch w.deed.fault {
	case "deny":
		_, err = w.Jobs.DenyJob(ctx, &macexecv1.DenyJobRequest{Id: job.GetId(), Reason: "not now"})
	case "cancel":
		_, err = w.Jobs.CancelJob(ctx, &macexecv1.CancelJobRequest{Id: job.GetId()})
	case "changed":
		for _, name := range []string{"in.txt", "out.txt"} {
			if err := exchange(filepath.Join(w.project, name)); err != nil {
				return err
			}
		}
		err = w.agree(ctx, job)
	case "expire", "late": // nobody does anything
	default:
		err = fmt.Errorf("no such deed: %s", w.deed.fault)
	}
	return err
}

func (w *walker) agree(ctx context.Context, job *macexecv1.Job) error {
	_, err := w.Jobs.ApproveJob(ctx, &macexecv1.ApproveJobRequest{
		Id: job.GetId(), BindingDigest: job.GetApproval().GetBinding().GetDigest(), Reason: "looked at it",
	})
	return err
}

// exchange gives a file that is there another content.
func exchange(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(otherContent)
	return err
}

const keyConflict = "IDEMPOTENCY_KEY_CONFLICT"

// requests are the calls of the cell.
func (w *walker) requests() []*macexecv1.SubmitJobRequest {
	if w.deed.point != "call.twice" {
		return []*macexecv1.SubmitJobRequest{w.req}
	}
	second := proto.CloneOf(w.req)
	if w.deed.fault == "other" {
		second.Purpose = macexecv1.Purpose_PURPOSE_PREVIEW
	}
	return []*macexecv1.SubmitJobRequest{w.req, second}
}

// answeredBy takes what one caller was told. Of two the answer is that of the caller whose
// call it is; the other one was told the same, or that the key belongs to that job.
func (w *walker) answeredBy(a answer) {
	w.t.Helper()
	w.others = append(w.others, a)
	if w.deed.point == "call.twice" && len(w.others) < 2 {
		return
	}
	last := len(w.others) - 1
	if a.job == nil {
		w.others[0], w.others[last] = w.others[last], w.others[0]
	}
	w.answer, w.others = &w.others[last], w.others[:last]
	w.req = w.answer.req
	for _, o := range w.others {
		job := w.answer.job.GetId()
		same := w.deed.fault == "same" && o.err == nil && o.job.GetId() == job
		if e, refused := errors.AsType[*client.Error](o.err); refused && w.deed.fault == "other" {
			same = e.Code() == keyConflict && e.JobID() == job
		}
		if !same {
			w.t.Errorf("one caller has job %s, the other %s, %v", job, o.job.GetId(), o.err)
		}
	}
}
