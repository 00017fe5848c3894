package engine

import (
	"context"
	"encoding/json"

	"github.com/macexec/macexec/jobs"
)

// FenceKey makes sure that nothing ever starts under a key that is still free
// (promise G15). It returns what the key stands for, whether this request planted the
// fence, and the job that the key already had. A submission and a fence of the same
// key are decided by the same writer, so one of them is first and the other is told.
func (e *Engine) FenceKey(ctx context.Context, c Caller, key, reason string) (record jobs.KeyRecord, planted bool, job *jobs.Job, err error) {
	if err := checkKey(key); err != nil {
		return record, false, nil, err
	}
	if err := checkReason(reason); err != nil {
		return record, false, nil, err
	}
	data, err := json.Marshal(map[string]string{"key": key})
	if err != nil {
		return record, false, nil, jobs.Errorf(jobs.CodeInternal, "describe the fence: %w", err)
	}
	record, planted, err = e.store.FenceKey(context.WithoutCancel(ctx), jobs.Key{Principal: c.Principal, Text: key}, jobs.Entry{
		Kind: jobs.EntryFence, Principal: c.Principal, Owner: c.Principal, Message: reason, Data: data,
	})
	if err != nil || record.Kind != jobs.KeyJob {
		return record, planted, nil, err
	}
	job, err = e.Job(ctx, c, record.JobID)
	return record, planted, job, err
}

func checkKey(key string) error {
	switch {
	case key == "":
		return jobs.Errorf(jobs.CodeRequestInvalid, "name the key").With("field", "key")
	case len(key) > maxKeyBytes:
		return jobs.Errorf(jobs.CodeRequestInvalid, "the idempotency key has %d bytes; the limit is %d", len(key), maxKeyBytes).With("field", "key")
	default:
		return nil
	}
}

// maxReasonBytes bounds what somebody says for the record.
const maxReasonBytes = 4 << 10

func checkReason(reason string) error {
	if len(reason) > maxReasonBytes {
		return jobs.Errorf(jobs.CodeRequestInvalid, "the reason has %d bytes; the limit is %d", len(reason), maxReasonBytes).With("field", "reason")
	}
	return nil
}
