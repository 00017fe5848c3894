package store_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// G13: a copy that is taken while calls come in is whole, has every job that was
// acknowledged before it was asked for, and holds no writer up while somebody is slow to
// read it.
func TestG13CopyAmongWrites(t *testing.T) {
	t.Parallel()
	s := open(t, newPath(t))
	const first = 200
	for n := range first {
		submit(t, s, n)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var made atomic.Int64
	grown := make(chan struct{}, 1)
	for w := range 4 {
		writers.Go(func() {
			for n := first + w; ctx.Err() == nil; n += 4 {
				submit(t, s, n)
				made.Add(1)
				select {
				case grown <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 5 {
		copied, err := s.Copy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for until := made.Load() + 50; made.Load() < until; {
			<-grown // with the copy open and not read
		}
		path := filepath.Join(t.TempDir(), "copy.db")
		raw, err := io.ReadAll(copied)
		if err != nil || int64(len(raw)) != copied.Size || copied.Close() != nil {
			t.Fatalf("%d bytes of %d: %v", len(raw), copied.Size, err)
		}
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		wantClean(t, path)
		again, err := store.Open(t.Context(), store.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		for n := range first {
			if _, err := again.Get(t.Context(), storetest.JobID(n)); err != nil {
				t.Fatal(err)
			}
		}
		if again.Head() != copied.Head || again.HostID() != copied.HostID {
			t.Errorf("the copy is of %s and ends at %d, and says %s and %d", again.HostID(), again.Head(), copied.HostID, copied.Head)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	writers.Wait()
}

// TestBackupOfAStoppedStore: it is byte for byte usable, and not made of what is in use,
// damaged, or no store.
func TestBackupOfAStoppedStore(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := open(t, path)
	submit(t, s, 1)
	var out bytes.Buffer
	if _, err := store.Backup(t.Context(), path, &out); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("of an open store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := store.Backup(t.Context(), path, &out)
	if err != nil || int64(out.Len()) != made.Size || made.Head != 1 || made.HostID != s.HostID() {
		t.Fatalf("%+v, %v", made, err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(copied, out.Bytes()[:out.Len()-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Backup(t.Context(), copied, io.Discard); jobs.CodeOf(err) != jobs.CodeStoreFailed {
		t.Errorf("of one that was cut short: %v", err)
	}
	if err := os.WriteFile(copied, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	wantClean(t, copied)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Backup(gone, copied, io.Discard); jobs.CodeOf(err) != jobs.CodeCallerGone {
		t.Errorf("for somebody who is gone: %v", err)
	}
}
