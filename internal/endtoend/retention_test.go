package endtoend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (d *daemon) prune() (*macexecv1.PruneStoreResponse, error) {
	return d.Store.PruneStore(d.context(), &macexecv1.PruneStoreRequest{OlderThan: durationpb.New(time.Nanosecond)})
}

// G2: the daemon is killed while it removes what has ended. Every key stays used, no folder
// stays for ever, and a job whose artifact a waiting job reads is not removed at all.
func TestG2_KilledWhilePruning(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 1}"), newLedgers(t)
	source := d.wait(d.submit(call("source", "ledger_staged", l.args("source", "write:1000"))).GetId(), completed)
	const many = 20
	for i := range many {
		key := fmt.Sprint("k", i)
		d.wait(d.submit(call(key, "ledger_none", l.args(key))).GetId(), completed)
	}
	open := l.gate("holder")
	holder := d.submit(call("holder", "ledger_none", l.args("holder", "gate"))).GetId()
	l.await("holder", "begin", 1)
	reader := d.submit(call("reader", "ledger_staged", l.args("reader", "copy").with("input", "job:"+source.GetId()+"/file").with("output", "copy.txt"))).GetId()

	pruned := make(chan error, 1)
	go func() {
		_, err := d.prune()
		pruned <- err
	}()
	enough := errors.New("enough")
	err := d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{Follow: true}, func(e *macexecv1.Entry) error {
		if strings.HasPrefix(e.GetMessage(), "removed the records of") {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	d.kill()
	t.Logf("the request that was cut off says %v", <-pruned)
	folders := d.jobFolders()
	t.Logf("%d folders are left of %d", len(folders), many+3)
	for _, name := range folders { // as if it were long ago
		old := time.Now().Add(-48 * time.Hour)
		if err := os.Chtimes(filepath.Join(d.state, "jobs", name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	if _, err := d.prune(); err != nil {
		t.Fatal(err)
	}
	// The reader has none yet.
	if diff := cmp.Diff([]string{source.GetId(), holder}, d.jobFolders()); diff != "" {
		t.Errorf("the folders that are left (-want +got):\n%s", diff)
	}
	for i := range many {
		key := fmt.Sprint("k", i)
		_, err := d.Submit(d.context(), call(key, "ledger_none", l.args(key)))
		wantCode(t, err, "RESULT_EXPIRED")
		_, err = d.Submit(d.context(), call(key, "ledger_none", l.args(key, "print:other")))
		wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT")
		l.wantStarts(key, 1)
	}
	open()
	d.wait(holder, completed)
	d.wait(reader, completed)
	wantFile(t, filepath.Join(d.project, "copy.txt"), strings.Repeat("s", 1000))
}

func (d *daemon) jobFolders() (names []string) {
	d.t.Helper()
	folders, err := os.ReadDir(filepath.Join(d.state, "jobs"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, folder := range folders {
		names = append(names, folder.Name())
	}
	return names
}
