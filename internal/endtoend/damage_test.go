package endtoend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// damage is done to the file of a store.
type damage struct {
	name  string
	spoil func([]byte) []byte // nil: it is gone
	want  string              // what a start is refused with; "": it may be served
}

// G13: a store that is damaged in any of these ways is refused with the reason and left
// as it is, or it is served, with what is damaged shown as damaged and nothing else
// touched. No key is ever free again, nothing is begun anew, and nothing panics.
func TestG13_EveryKindOfDamage(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	var ids []string
	submit := func(n int) (*macexecv1.Job, error) {
		name := fmt.Sprint("job-", n)
		return d.Submit(d.context(), call(name, "ledger_none", l.args(name)))
	}
	run := func(n int) {
		t.Helper()
		job, err := submit(n)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.GetId())
		d.wait(job.GetId(), completed)
	}
	const all = 12
	for n := range all / 2 {
		run(n)
	}
	backup := filepath.Join(d.state, "backup.db")
	if code, output := d.macexec("store", "backup", backup); code != 0 {
		t.Fatalf("exit code %d: %s", code, output)
	}
	for n := all / 2; n < all; n++ {
		run(n)
	}
	d.end(syscall.SIGTERM)
	path, witnessed := filepath.Join(d.state, "store.db"), filepath.Join(d.state, "witness.json")
	whole, witness := string(readFile(t, path)), string(readFile(t, witnessed))
	page := os.Getpagesize()
	flip := func(within string, behind int) func([]byte) []byte {
		return func(b []byte) []byte {
			found := 0
			for at := 0; ; found++ {
				next := bytes.Index(b[at:], []byte(within))
				if next < 0 {
					break
				}
				at += next + len(within)
				b[at+behind] ^= 1 << (behind % 8) // also in pages of before, which nobody reads
			}
			if found == 0 {
				t.Fatalf("the store has no %q", within)
			}
			return b
		}
	}
	tests := []damage{
		{"cut to half of what it holds", func(b []byte) []byte { return b[:len(bytes.TrimRight(b, "\x00"))/2] }, "CANNOT_SERVE"},
		{"the first 4 KiB are zeros", func(b []byte) []byte { clear(b[:4<<10]); return b }, ""},
		{"the first 8 KiB are zeros", func(b []byte) []byte { clear(b[:8<<10]); return b }, "CANNOT_SERVE"},
		{"every other page is zeros", func(b []byte) []byte {
			for at := page; at < len(b); at += 2 * page {
				clear(b[at:min(at+page, len(b))])
			}
			return b
		}, "CANNOT_SERVE"},
		{"every other page is zeros, from the first", func(b []byte) []byte {
			for at := 0; at < len(b); at += 2 * page {
				clear(b[at:min(at+page, len(b))])
			}
			return b
		}, "CANNOT_SERVE"},
		{"text", func([]byte) []byte { return []byte("this was a store once\n") }, "CANNOT_SERVE"},
		{"0 bytes", func([]byte) []byte { return []byte{} }, "CANNOT_SERVE"},
		{"missing", nil, "STORE_MISSING"},
		{"an older copy", func([]byte) []byte { return readFile(t, backup) }, "STORE_OLDER"},
		{"a bit of a job's principal", flip(`{"id":"`+ids[3]+`","host":"`, 2), ""},
		{"a bit of a job's time", flip(`"principal":"owner","key":"job-5"`, 30), ""},
		{"a bit of a key's fingerprint", flip(`{"key":{"principal":"owner","text":"job-4"},"kind":"job","fingerprint":"`, 9), ""},
		{"a bit of a key's job", flip(`{"key":{"principal":"owner","text":"job-2"},"kind":"job","fingerprint":"`, 85), ""},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		job, key := random.IntN(all), random.IntN(all)
		inJob, inKey := random.IntN(500), random.IntN(90)
		tests = append(tests, damage{fmt.Sprintf("a bit of job %d, at %d", job, inJob), flip(`{"id":"`+ids[job]+`","host":"`, inJob), ""},
			damage{fmt.Sprintf("a bit of key %d, at %d", key, inKey), flip(fmt.Sprintf(`{"key":{"principal":"owner","text":"job-%d"`, key), inKey), ""})
	}
	for _, test := range tests {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		d.write(witnessed, witness)
		bad := ""
		if test.spoil != nil {
			bad = string(test.spoil([]byte(whole)))
			d.write(path, bad)
		}
		if refused, output := d.tryStart(); refused {
			if test.want == "" {
				test.want = "the store"
			}
			if !strings.Contains(output, test.want) || strings.Contains(output, "goroutine ") {
				t.Errorf("%s: refused, and not as %s: %s", test.name, test.want, output)
			}
			if left, err := os.ReadFile(path); string(left) != bad || (err != nil) != (test.spoil == nil) {
				t.Errorf("%s: the file was changed: %v", test.name, err)
			}
			continue
		}
		if test.want != "" {
			t.Errorf("%s: it was served", test.name)
		}
		shown, err := d.checkDamaged(test.name, ids, submit)
		if strings.HasPrefix(test.name, "a bit") && (shown == 0 || err != nil) {
			t.Errorf("%s: %d records are shown as damaged, and a new call is answered: %v", test.name, shown, err)
		}
		t.Logf("%s: served, %d answers are that a record is damaged", test.name, shown)
		if log := d.process.log.String(); strings.Contains(log, "goroutine ") {
			t.Errorf("%s: the daemon says %s", test.name, log)
		}
		d.kill()
		for _, folder := range d.jobFolders() { // which would tell that the store that is put back is older
			if slices.Contains(ids, folder) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(d.state, "jobs", folder)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range all {
		l.wantStarts(fmt.Sprint("job-", n), 1)
	}
	d.write(path, whole)
	d.write(witnessed, witness)
	d.start()
}

// checkDamaged asks for everything that a damaged store had. It returns how many answers
// are that a record is damaged, and what a new call is answered.
func (d *daemon) checkDamaged(how string, ids []string, again func(n int) (*macexecv1.Job, error)) (shown int, fresh error) {
	d.t.Helper()
	for n, id := range ids {
		got, err := d.Jobs.GetJob(d.context(), &macexecv1.GetJobRequest{Id: id})
		if err != nil {
			wantCode(d.t, err, "RECORD_DAMAGED")
			shown++
		} else if job := got.GetJob(); job.GetState() != completed || job.GetKey() != fmt.Sprint("job-", n) || job.GetPrincipal() != "owner" {
			d.t.Errorf("%s: job %s is believed to be %v", how, id, job)
		}
		job, err := again(n)
		if err != nil {
			wantCode(d.t, err, "RECORD_DAMAGED")
			shown++
		} else if job.GetId() != id {
			d.t.Errorf("%s: key %d is answered with job %s, not %s", how, n, job.GetId(), id)
		}
	}
	l := newLedgers(d.t)
	job, err := d.Submit(d.context(), call("fresh", "ledger_none", l.args("fresh")))
	if err == nil {
		d.wait(job.GetId(), completed)
	}
	return shown, err
}

// tryStart starts the daemon, unless it refuses to.
func (d *daemon) tryStart() (refused bool, output string) {
	d.t.Helper()
	log := &logWatch{ready: make(chan struct{})}
	cmd := exec.Command(filepath.Join(built.bin, "macexec"), "serve", "--state", d.state)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + d.state}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	p := &process{cmd: cmd, log: log, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.gone)
	}()
	select {
	case <-log.ready:
		d.process = p
		return false, ""
	case <-p.gone:
		if cmd.ProcessState.ExitCode() != 10 {
			d.t.Errorf("the daemon exits with %v", cmd.ProcessState)
		}
		return true, log.String()
	}
}
