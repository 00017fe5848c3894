package engine

import (
	"context"

	"github.com/macexec/macexec/jobs"
)

// BackupStore makes a copy of the store. Who takes one is written down first, so that
// the copy tells it as well.
func (e *Engine) BackupStore(ctx context.Context, c Caller) (jobs.StoreCopy, error) {
	if err := e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Principal: c.Principal, Message: "a copy of the store is taken"}); err != nil {
		return jobs.StoreCopy{}, err
	}
	return e.store.Copy(ctx)
}
