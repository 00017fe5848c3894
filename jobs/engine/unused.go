package engine

import (
	"context"
	"fmt"

	"github.com/macexec/macexec/jobs"
)

// pruneManifests removes the texts of manifests that no job with a record was accepted
// with. Those of this start stay: a call that is decided just now is accepted with one of
// them.
func (e *Engine) pruneManifests(ctx context.Context, how pruning, got *Pruned) error {
	spare := map[string]bool{}
	for _, tool := range e.registry.All() {
		spare[tool.Digest] = true
	}
	n, bytes, err := e.store.CollectManifests(ctx, jobs.ManifestQuery{Spare: spare, Gone: how.counted, Dry: how.dry})
	if err == nil {
		got.Manifests += n
		got.UnusedBytes += bytes
	}
	return err
}

// pruneKeepers removes the keepers of earlier daemons once no attempt of one runs any
// more: new ones are started with this daemon's.
func (e *Engine) pruneKeepers(ctx context.Context, how pruning, got *Pruned) error {
	for _, id := range e.retention.inherited {
		job, err := e.store.Get(ctx, id)
		if jobs.CodeOf(err) == jobs.CodeJobNotFound || err == nil && job.State != jobs.StateRunning {
			continue
		}
		return nil // also one whose record is damaged may have a keeper
	}
	n, bytes, err := e.exec.OldKeepers(true)
	if err == nil && n > 0 && !how.dry {
		message := fmt.Sprintf("old keepers that no attempt needs any more are removed: %d with %d bytes", n, bytes)
		if err := e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Message: message}); err != nil {
			return err
		}
		e.retention.inherited = nil
		n, bytes, err = e.exec.OldKeepers(false)
	}
	got.Keepers += n
	got.UnusedBytes += bytes
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "old keepers cannot be removed: %w", err)
	}
	return nil
}
