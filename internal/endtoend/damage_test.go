package endtoend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// editStore changes a bucket of the store while no daemon has it.
func (d *daemon) editStore(bucket string, change func(*bbolt.Bucket) error) {
	d.t.Helper()
	db, err := bbolt.Open(filepath.Join(d.state, "store.db"), 0o600, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte(bucket))) })
	if err := errors.Join(err, db.Close()); err != nil {
		d.t.Fatal(err)
	}
}

// G12: a reader whose cursor lies before the oldest kept entry is told so, and from
// where on there is everything; one without a cursor begins there.
func TestG12_AnExpiredCursorIsSaid(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	id := d.submit(call("k", "ledger_none", l.args("a"))).GetId()
	d.wait(id, completed)
	d.kill()
	cut := map[uint64][]byte{}
	d.editStore("journal", func(entries *bbolt.Bucket) error {
		for seq := range uint64(2) { // which are about the host
			key := binary.BigEndian.AppendUint64(nil, seq+1)
			cut[seq+1] = bytes.Clone(entries.Get(key))
			if err := entries.Delete(key); err != nil || cut[seq+1] == nil {
				return fmt.Errorf("entry %d: %w", seq+1, err)
			}
		}
		return nil
	})
	d.start()
	enough := errors.New("enough")
	watch := func(after uint64) (first uint64, err error) {
		err = d.Watch(d.context(), &macexecv1.WatchJobsRequest{After: after}, func(e *macexecv1.Event) error {
			first = e.GetCursor()
			return enough
		})
		return first, err
	}
	read := func(after uint64) (first uint64, err error) {
		err = d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{After: after, Limit: 1}, func(e *macexecv1.Entry) error {
			first = e.GetSeq()
			return enough
		})
		return first, err
	}
	for name, open := range map[string]func(uint64) (uint64, error){"watch": watch, "journal": read} {
		_, err := open(1)
		if e := wantCode(t, err, "CURSOR_EXPIRED"); e.Detail.GetMetadata()["oldest"] != "3" {
			t.Errorf("%s: the oldest entry is said to be %v", name, e.Detail.GetMetadata())
		}
		whole, err := open(2)
		if !errors.Is(err, enough) || whole < 3 {
			t.Errorf("%s: from the oldest on: %d, %v", name, whole, err)
		}
		if first, err := open(0); !errors.Is(err, enough) || first != whole {
			t.Errorf("%s: without a cursor: %d, %v; want %d", name, first, err, whole)
		}
	}
	d.kill()
	d.editStore("journal", func(entries *bbolt.Bucket) (err error) {
		for seq, entry := range cut {
			err = errors.Join(err, entries.Put(binary.BigEndian.AppendUint64(nil, seq), entry))
		}
		return err
	})
	d.start()
}

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
	d.editStore("jobs", func(records *bbolt.Bucket) error {
		record := records.Get([]byte(ids["damaged"]))
		if record == nil {
			return errors.New("the record is not there")
		}
		return records.Put([]byte(ids["damaged"]), record[:len(record)/2])
	})
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
	_, err := d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: ids["damaged"]})
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
