package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// The free room that the store tells is what bbolt itself counts, also when its free
// list outgrows the count in its page's header.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, records := range []int{0, 500, 66_000} {
		path := filepath.Join(t.TempDir(), "store.db")
		listed := fillAndEmpty(t, path, records)
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		s := &Store{file: file}
		size, free := s.Size()
		head, err := inspectFile(file, info.Size())
		if err != nil {
			t.Fatal(err)
		}
		unused := info.Size() - int64(head.current.highWater)*head.current.pageSize
		if size != info.Size() || free != listed+unused {
			t.Errorf("after %d records: %d bytes of which %d are free; the file has %d, and bbolt lists %d as free beside %d never used",
				records, size, free, info.Size(), listed, unused)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if size, free := s.Size(); size != 0 || free != 0 {
			t.Errorf("a closed store has %d bytes, %d free", size, free)
		}
	}
}

// fillAndEmpty writes pages and gives them back, and returns the bytes that bbolt
// then counts as free.
func fillAndEmpty(t *testing.T, path string, records int) int64 {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, PageSize: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	name, page := []byte("room"), make([]byte, 900)
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(name)
		if err != nil {
			return err
		}
		b.FillPercent = 1
		for i := range records {
			if err := b.Put(encodeU64(uint64(i)), page); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(name) }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true}); err != nil {
		t.Fatal(err)
	}
	free := int64(db.Stats().FreePageN) * int64(db.Info().PageSize)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return free
}

// Each commit is told with the time it took; what is only looked at is none.
func TestCommitted(t *testing.T) {
	t.Parallel()
	var told []error
	s, err := Open(t.Context(), Options{
		Path:      filepath.Join(t.TempDir(), "store.db"),
		Committed: func(_ time.Duration, err error) { told = append(told, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), jobs.Entry{Kind: jobs.EntryHost}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "none"); jobs.CodeOf(err) != jobs.CodeJobNotFound {
		t.Errorf("a job that there is not: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || told[0] != nil {
		t.Errorf("told of %v, want one commit", told)
	}
}
