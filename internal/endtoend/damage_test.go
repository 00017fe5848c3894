package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G13: one damaged record is reported, and everything else goes on.
func TestG13_OneDamagedRecordStopsNothingElse(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 3}"), newLedgers(t)
	opens := map[string]func(){}
	ids := map[string]string{}
	for _, name := range []string{"before", "damaged", "after"} {
		opens[name] = l.gate(name)
		ids[name] = d.submit(call(name, "ledger_none", l.args(name, "gate"))).GetId()
		l.await(name, "begin", 1)
	}
	d.kill()
	db, err := bbolt.Open(filepath.Join(d.state, "store.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte("jobs"))
		record := records.Get([]byte(ids["damaged"]))
		if record == nil {
			return errors.New("the record is not there")
		}
		return records.Put([]byte(ids["damaged"]), record[:len(record)/2])
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	d.start()
	for name, open := range opens {
		open()
		l.await(name, "end", 1)
	}
	for _, name := range []string{"before", "after"} {
		d.wait(ids[name], completed)
		l.wantStarts(name, 1)
	}
	fresh := d.submit(call("fresh", "ledger_none", l.args("fresh"))).GetId()
	d.wait(fresh, completed)
	_, err = d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: ids["damaged"]})
	wantCode(t, err, "RECORD_DAMAGED")
	_, err = d.Submit(d.context(), call("damaged", "ledger_none", l.args("damaged", "gate")))
	wantCode(t, err, "RECORD_DAMAGED")
	l.wantStarts("damaged", 1)
	page, err := d.Jobs.ListJobs(d.context(), &macexecv1.ListJobsRequest{})
	if err != nil || len(page.GetJobs()) != 3 || page.GetDamaged()[ids["damaged"]] == "" {
		t.Errorf("%d jobs are listed, and as damaged %v; %v", len(page.GetJobs()), page.GetDamaged(), err)
	}
}

// G13: a store that cannot be read is kept as it is, and no daemon starts on it.
func TestG13_DamagedStoreIsKept(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.wait(d.submit(call("k", "ledger_none", l.args("a"))).GetId(), completed)
	d.end(syscall.SIGTERM)
	path := filepath.Join(d.state, "store.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := strings.Repeat("\x00", 8192) + string(whole[8192:]) // the first two pages say where everything is
	d.write(path, broken)
	code, output := d.macexec("serve")
	if code == 0 || !strings.Contains(output, "store") {
		t.Errorf("the daemon exits with %d: %s", code, output)
	}
	wantFile(t, path, broken)
	d.write(path, string(whole))
	d.start()
	d.wait(d.submit(call("k", "ledger_none", l.args("a"))).GetId(), completed)
	l.wantStarts("a", 1)
}
