package engine

import (
	"context"
	"errors"
	"time"

	"github.com/macexec/macexec/jobs"
)

// sweepEvery is how often what uploads left is looked through.
const sweepEvery = time.Hour

// sweepUploads removes, now and from time to time, what nobody has used for
// Limits.BlobUnused, until the engine stops. A sweep that panics is not the last one.
func (e *Engine) sweepUploads() {
	for {
		e.guarded(func() {
			if err := e.sweepOnce(e.stopped); err != nil && e.stopped.Err() == nil {
				e.log.Warn("old uploads could not all be removed", "error", err)
			}
		})
		next := time.NewTimer(min(sweepEvery, e.limits().BlobUnused))
		select {
		case <-next.C:
		case <-e.stopped.Done():
			next.Stop()
			return
		}
	}
}

// sweepOnce removes uploads that stopped half-way, blobs that nothing needs, and
// files that a crash left without a record. A file goes after its record, and no
// upload can put it back in between: what has a record has its file.
func (e *Engine) sweepOnce(ctx context.Context) error {
	if e.deadlines.justWoke() {
		return nil // perhaps somebody goes on with one just now
	}
	before := e.deadlines.least().Add(-e.limits().BlobUnused)
	_, expired := e.blobs.Expire(before)
	return errors.Join(expired, e.collectBlobs(ctx, before), e.removeStrays(ctx, before))
}

func (e *Engine) collectBlobs(ctx context.Context, before time.Time) error {
	const some = 64 // uploads wait no longer than that many take
	for {
		n, err := func() (int, error) {
			e.shelves.Lock()
			defer e.shelves.Unlock()
			gone, err := e.store.CollectBlobs(ctx, before, some)
			for _, blob := range gone {
				err = errors.Join(err, e.blobs.Remove(blob.SHA256))
			}
			return len(gone), err
		}()
		if err != nil || n < some {
			return err
		}
	}
}

// removeStrays removes files without a record that were written before a time. They
// are not many and do no harm, and if it is the store that was lost and not the
// record, there is time to notice.
func (e *Engine) removeStrays(ctx context.Context, before time.Time) error {
	for first := range 256 {
		err := func() error {
			e.shelves.Lock()
			defer e.shelves.Unlock()
			digests, err := e.blobs.Shelf(byte(first))
			for _, digest := range digests {
				if _, missing := e.store.GetBlob(ctx, digest); jobs.CodeOf(missing) != jobs.CodeFileNotFound {
					continue
				}
				f, facts, failed := e.blobs.Open(digest)
				if failed == nil {
					f.Close()
				}
				if failed == nil && facts.ModTime.Before(before) {
					failed = e.blobs.Remove(digest)
				}
				err = errors.Join(err, failed)
			}
			return err
		}()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}
