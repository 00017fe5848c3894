package store

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// Run with -update to write the golden tree anew, and with -update-store to save a
// store of the newest schema version in testdata. The latter is done once for each
// version, before the first migration away from it is written, and never again.
var (
	updateGolden = flag.Bool("update", false, "write golden files anew")
	updateStores = flag.Bool("update-store", false, "save a store of this schema version in testdata")
)

// fill puts something into every bucket.
func hexDigest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

func fill(t testing.TB, s *Store) {
	t.Helper()
	ctx := t.Context()
	given := s.noRows
	s.noRows = true // so that some jobs are in order, and some among the newest
	for n := range 3 {
		submit(t, s, n)
	}
	s.noRows = given
	last := storetest.NewJob(4)
	if _, err := s.Submit(ctx, storetest.Submission(last)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, last.ID, storetest.Cancel); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Prune(ctx, []string{last.ID}, "that nobody needs"); err != nil || len(gone) != 1 {
		t.Fatal(gone, err)
	}
	submitted := storetest.Submission(storetest.NewJob(1))
	if _, err := s.Submit(ctx, submitted); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, storetest.JobID(0), storetest.Cancel); err != nil {
		t.Fatal(err)
	}
	digest := strings.Repeat("ab", 32)
	reads := storetest.NewJob(3)
	reads.Inputs = []jobs.InputFile{{Pointer: "/input", Reference: "sha256:" + digest, SHA256: digest, Size: 3}}
	err := errors.Join(
		s.PutBlob(ctx, jobs.Blob{SHA256: digest, Size: 3, MediaType: "text/plain", Principals: []string{"orchestrator"}}),
		s.PutProject(ctx, jobs.Project{Name: "default", Root: "/srv/default"}, "operator"),
		s.PutManifest(ctx, hexDigest([]byte("tool: x\n")), []byte("tool: x\n")),
		s.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Message: "the daemon started"}),
		s.SetMode(ctx, jobs.HostMode{Mode: jobs.ModePaused, By: "operator", Reason: "a new disk"}),
	)
	if err == nil {
		_, err = s.Submit(ctx, storetest.Submission(reads))
	}
	if err == nil {
		_, err = s.CloseRuns(ctx, jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"run-x"}, Calls: []jobs.RunCall{{RunID: "run-x", CallID: "call-x"}}, Reason: "enough"})
	}
	if err == nil {
		_, _, err = s.FenceKey(ctx, jobs.Key{Principal: "orchestrator", Text: "moved"}, jobs.Entry{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dump writes the bucket tree, one line for each key. Text is shown as text and
// everything else in hex.
func dump(t testing.TB, s *Store) string {
	t.Helper()
	var out strings.Builder
	show := func(b []byte) string {
		for _, c := range b {
			if c < ' ' || c > '~' {
				return fmt.Sprintf("%x", b)
			}
		}
		return string(b)
	}
	var walk func(b *bbolt.Bucket, depth int) error
	walk = func(b *bbolt.Bucket, depth int) error {
		return b.ForEach(func(k, v []byte) error {
			fmt.Fprintf(&out, "%s%s", strings.Repeat("\t", depth), show(k))
			if sub := b.Bucket(k); sub != nil {
				out.WriteString("/\n")
				return walk(sub, depth+1)
			}
			if string(k) == metaHostID {
				v = []byte("(random)")
			}
			fmt.Fprintf(&out, " = %s\n", show(v))
			return nil
		})
	}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			fmt.Fprintf(&out, "%s/\n", name)
			return walk(b, 1)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The tree on disk is the one that the package comment draws.
func TestTree(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	fill(t, s)
	got := dump(t, s)
	golden := filepath.Join("testdata", "tree.golden")
	if *updateGolden {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range buckets() {
		if !strings.Contains(string(doc), "//\t"+name+"\n") {
			t.Errorf("the package comment does not draw bucket %s", name)
		}
		if !strings.Contains(got, name+"/\n\t") {
			t.Errorf("the test puts nothing into bucket %s", name)
		}
	}
	for _, key := range []string{metaSchemaVersion, metaHostID, metaCreatedAt, metaJobSeq, metaJournalHead, metaJournalAnchor, metaHostMode} {
		if !strings.Contains(string(doc), "── "+key+" ") {
			t.Errorf("the package comment does not draw meta key %s", key)
		}
	}
}

func storeFile(version uint64) string {
	return filepath.Join("testdata", fmt.Sprintf("store-v%d.db.gz", version))
}

// Stores of every version since the first can still be opened, and hold what was
// put into them.
func TestOldStores(t *testing.T) {
	t.Parallel()
	newest := schemaVersion(migrations())
	if *updateStores {
		saveStore(t, storeFile(newest))
	}
	for version := uint64(firstSchema); version <= newest; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			path := unpack(t, storeFile(version))
			s := openAt(t, path)
			want := map[uint64]uint64{1: 8, 2: 12, 3: 15}[version]
			if s.Head() != want || s.HostID() == "" {
				t.Errorf("head %d, host %q", s.Head(), s.HostID())
			}
			if good, err := s.VerifyJournal(t.Context()); err != nil || good != want {
				t.Errorf("%d good entries, %v", good, err)
			}
			got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(2)))
			if err != nil || got.Outcome != jobs.SubmitReplayed || got.Job.Seq != 3 {
				t.Errorf("got %+v, %v", got, err)
			}
			_ = s.Close()
			if problems, err := Check(path); err != nil || len(problems) > 0 {
				t.Errorf("Check: %q, %v", problems, err)
			}
			_, err = os.Stat(fmt.Sprintf("%s.v%d.bak", path, version))
			if saved := err == nil; saved != (version < newest) {
				t.Errorf("a copy from before the upgrade: %t", saved)
			}
		})
	}
}

func saveStore(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	fill(t, s)
	_ = s.Close()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(raw)
	if err := errors.Join(err, z.Close(), os.WriteFile(name, buf.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// migrationTests has the test of each migration, by its name.
func migrationTests() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		migrations()[0].name: testDerive,
		migrations()[1].name: testMoveRows,
	}
}

// What version 2 keeps beside the records is what the records of an older store say.
func testDerive(t *testing.T) {
	s := openAt(t, unpack(t, storeFile(1)))
	page, err := s.SumUsage(t.Context(), jobs.UsageQuery{By: jobs.UsageByRun})
	want := jobs.UsagePage{Rows: []jobs.UsageRow{{Name: "run-0", Since: storetest.Time().Truncate(time.Hour), Cancelled: 1}}}
	if diff := cmp.Diff(want, page); diff != "" || err != nil {
		t.Errorf("usage (-want +got):\n%s%v", diff, err)
	}
	if m, err := s.Mode(t.Context()); err != nil || m != (jobs.HostMode{}) {
		t.Errorf("mode %+v, %v", m, err)
	}
	list, err := s.List(t.Context(), jobs.Query{States: []jobs.State{jobs.StateQueued}})
	if err != nil || len(list.Jobs) != 2 {
		t.Errorf("queued: %+v, %v", list, err)
	}
	if blob, err := s.GetBlob(t.Context(), strings.Repeat("ab", 32)); err != nil || !blob.StoredAt.Equal(storetest.Time()) {
		t.Errorf("a file: %+v, %v", blob, err)
	}
}

// What version 2 had in rows of the index is found, also by a row that could not be read,
// and the entries of its jobs are, from before the upgrade and after it.
func testMoveRows(t *testing.T) {
	path := unpack(t, storeFile(2))
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		index := tx.Bucket([]byte(bucketIndex))
		values := valuesOf(storetest.NewJob(0))
		row := []byte{0, 0, byte(len(values))}
		for _, v := range values {
			row = append(row, v[:]...)
			if err := index.Delete(slices.Concat(make([]byte, 4), v[:])); err != nil {
				return err
			}
		}
		return errors.Join(index.Put(rowKey(1), row), index.Put(rowKey(2), []byte("foreign")))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, path)
	if _, err := s.Update(t.Context(), storetest.JobID(0), func(*jobs.Job) (jobs.Note, error) { return jobs.Note{Message: "after"}, nil }); err != nil {
		t.Fatal(err)
	}
	for n, entries := range map[int]int{0: 3, 1: 2, 2: 1} {
		page, err := s.List(t.Context(), jobs.Query{ToolCall: fmt.Sprint("call-", n)})
		if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != storetest.JobID(n) {
			t.Errorf("job %d: %+v, %v", n, page, err)
		}
		var got []uint64
		err = s.JobJournal(t.Context(), storetest.JobID(n), func(e jobs.Entry) bool { got = append(got, e.Seq); return e.JobID == storetest.JobID(n) })
		if err != nil || len(got) != entries || !slices.IsSorted(got) {
			t.Errorf("job %d has the entries %v, %v", n, got, err)
		}
	}
	_ = s.Close()
	if problems, err := Check(path); err != nil || len(problems) > 0 {
		t.Errorf("Check: %q, %v", problems, err)
	}
}

// Files that version 1 promised to keep are there for as long after the upgrade as
// files of today are after their last use, and longer if they may still be read.
func TestFilesOutliveAnUpgrade(t *testing.T) {
	t.Parallel()
	upgraded := storetest.Time().AddDate(1, 0, 0)
	now := func() time.Time { return upgraded }
	for name, broken := range map[string]bool{"whole": false, "with an open job that is damaged": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := unpack(t, storeFile(1))
			if broken {
				db, err := bbolt.Open(path, 0o600, nil)
				if err != nil {
					t.Fatal(err)
				}
				err = db.Update(func(tx *bbolt.Tx) error {
					return tx.Bucket([]byte(bucketJobs)).Put([]byte(storetest.JobID(1)), []byte("{"))
				})
				if err := errors.Join(err, db.Close()); err != nil {
					t.Fatal(err)
				}
			}
			var said strings.Builder
			s, err := Open(t.Context(), Options{Path: path, Now: now, Logger: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if gone, err := s.CollectBlobs(t.Context(), upgraded, 0); err != nil || len(gone) != 0 {
				t.Errorf("the first sweep took %+v, %v", gone, err)
			}
			gone, err := s.CollectBlobs(t.Context(), upgraded.Add(time.Second), 0)
			if err != nil || len(gone) != 0 && broken || len(gone) != 1 && !broken {
				t.Errorf("later it took %+v, %v", gone, err)
			}
			if told := strings.Contains(said.String(), storetest.JobID(1)); told != broken {
				t.Errorf("the log says %s", said.String())
			}
		})
	}
}

func TestEveryMigrationHasATest(t *testing.T) {
	t.Parallel()
	for i, m := range migrations() {
		test := migrationTests()[m.name]
		if test == nil {
			t.Errorf("migration %q has no test", m.name)
			continue
		}
		if _, err := os.Stat(storeFile(uint64(firstSchema + i))); err != nil {
			t.Errorf("migration %q has no store to start from: %v", m.name, err)
		}
		t.Run(m.name, test)
	}
	if len(migrationTests()) != len(migrations()) {
		t.Errorf("%d tests for %d migrations", len(migrationTests()), len(migrations()))
	}
}

// The machinery, with steps that only this test knows.
func TestMigrate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	submit(t, s, 1)
	before := dump(t, s)
	broken := errors.New("a step failed")
	var fail bool
	var ran []string
	step := func(name string) migration {
		return migration{name, func(tx *bbolt.Tx, _ time.Time) error {
			ran = append(ran, name)
			if _, err := tx.CreateBucket([]byte("new " + name)); err != nil {
				return err
			}
			if fail && name == "two" {
				return broken
			}
			return nil
		}}
	}
	list := append(migrations(), step("one"), step("two"))
	log := slog.New(slog.DiscardHandler)

	fail = true
	err := migrate(path, s.db, list, storetest.Time(), log)
	if err == nil || !strings.Contains(err.Error(), path+".v3.bak") || errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	fail = false
	if err := migrate(path, s.db, list, storetest.Time(), log); err != nil {
		t.Error(err)
	}
	if err := migrate(path, s.db, list, storetest.Time(), log); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"one", "two", "two"}, ran); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := dump(t, s); !strings.Contains(got, "new one/\n") || !strings.Contains(got, "new two/\n") {
		t.Errorf("the steps left\n%s", got)
	}
	_ = s.Close()

	// This macexec is now older than the store.
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Path: path})
	wantCode(t, err, jobs.CodeStoreFailed)
	if err == nil || !strings.Contains(err.Error(), "version 5") || !strings.Contains(err.Error(), "up to 3") {
		t.Errorf("got %v", err)
	}
	if _, err := Check(path); err == nil || !strings.Contains(err.Error(), "version 5") {
		t.Errorf("Check: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(now, after) {
		t.Errorf("the file was changed, %v", err)
	}

	// The copy is the store from before.
	info, err := os.Stat(path + ".v3.bak")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if diff := cmp.Diff(before, dump(t, openAt(t, path+".v3.bak"))); diff != "" {
		t.Errorf("the copy (-want +got):\n%s", diff)
	}
}

// A bbolt file of something else is refused and kept.
func TestForeignFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Path: path})
	wantCode(t, err, jobs.CodeStoreFailed)
	if err == nil || !strings.Contains(err.Error(), "no store of macexec") {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
}

// Whatever the start of a file says, looking at it ends well, and what is accepted
// lies inside the file.
func FuzzInspectFile(f *testing.F) {
	s := openNew(f)
	path := s.path
	_ = s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:8192])
	f.Add(good)
	f.Add([]byte{})
	f.Add(make([]byte, 8192))
	f.Fuzz(func(t *testing.T, b []byte) {
		head, err := inspectFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		if m := head.current; m.highWater*uint64(m.pageSize) > uint64(len(b)) || m.root >= m.highWater {
			t.Errorf("accepted %+v in %d bytes", m, len(b))
		}
	})
}

// Two keys never share a place, and a place never moves.
func TestKeyPlace(t *testing.T) {
	t.Parallel()
	seen := map[string]jobs.Key{}
	for _, key := range []jobs.Key{{}, {Principal: "ab"}, {Text: "ab"}, {Principal: "a", Text: "b"}, {Principal: "ab", Text: "c"}, {Principal: "a", Text: "bc"}} {
		place := fmt.Sprintf("%x", keyPlace(key))
		if other, taken := seen[place]; taken || !strings.HasPrefix(place, "01") || len(place) != 66 {
			t.Errorf("%+v lies at %s, like %+v", key, place, other)
		}
		seen[place] = key
	}
	const want = "010f1d8984b34345458117cc3559e20922d71aeaa085af103d6af75c5f6ddf3424"
	if got := fmt.Sprintf("%x", keyPlace(jobs.Key{Principal: "orchestrator", Text: "key-1"})); got != want {
		t.Errorf("the place of a key moved from %s to %s", want, got)
	}
}
