package engine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
)

// putBack ends the engine, puts a copy of the store in the place of the store and starts
// an engine on it. Whoever uses it says that what was forgotten is dealt with.
func (h *host) putBack(copied []byte) {
	h.t.Helper()
	h.Stop()
	path := filepath.Join(h.t.TempDir(), "store.db") // beside no witness of the other one
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		h.t.Fatal(err)
	}
	records, err := store.Open(h.t.Context(), store.Options{Path: path})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		h.Stop()
		if err := records.Close(); err != nil {
			h.t.Error(err)
		}
	})
	h.store.Store = &restoredStore{Store: records}
	h.start()
	if _, err := h.ConfirmRestore(h.t.Context(), owner(), "nothing was done since"); err != nil {
		h.t.Fatal(err)
	}
}

// G4: a store that was restored has forgotten that an attempt came to its start, or that
// there was a later one. Their folders tell, so nothing with outside effects is started
// under the key again.
func TestG4ForgottenStartsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		copied int32 // before which write of the job, counted from 1
		cut    int32 // which write an engine does not live to make; 0: none
	}{
		"the attempt has begun, and its intent is forgotten":  {copied: 2},
		"a later attempt is forgotten":                        {copied: 1, cut: 2},
		"the attempt has begun, and a later one is forgotten": {copied: 2, cut: 2},
	} {
		for effects, want := range map[string]jobs.State{"external": jobs.StateUnknown, "staged": jobs.StateCompleted} {
			t.Run(name+", "+effects, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, manifest("act", effects, "echo ran", plainResult))
				var copied []byte
				var n atomic.Int32
				h.store.failing(false, func(int) error {
					k := n.Add(1)
					if k == test.copied {
						c, err := h.store.Store.Copy(t.Context())
						if err != nil {
							t.Error(err)
							return nil
						}
						defer c.Close()
						if copied, err = io.ReadAll(c); err != nil {
							t.Error(err)
						}
					}
					if k == test.cut {
						h.leave()
						return errors.New("the daemon is killed")
					}
					return nil
				})
				h.sched.close()
				job := h.mustCall(owner(), "act", "k", `{}`, jobs.Options{})
				n.Store(0)
				h.sched.open()
				h.dispatch()
				if test.cut != 0 {
					<-h.stopped.Done()
					h.Stop()
					h.start()
				}
				h.wantState(h.await(job.ID, settled), jobs.StateCompleted, jobs.EndOK)
				h.store.failing(false, nil)
				h.putBack(copied)
				job = h.await(job.ID, settled)
				if job.State != want {
					t.Errorf("the job is %s: %s", job.State, job.Message)
				}
				records, err := filepath.Glob(filepath.Join(h.exec.JobDir(job.ID), "a*", "keeper", "started"))
				if err != nil || effects == "external" && (len(records) != 1 || !strings.Contains(job.Message, "forgotten")) {
					t.Errorf("it was started as %q says, %v, and says %q", records, err, job.Message)
				}
			})
		}
	}
}
