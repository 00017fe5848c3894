package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// keysOf returns where the root of bucket keys is, in a file that is closed.
func keysOf(t *testing.T, path string) (raw []byte, root uint64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error { root = uint64(tx.Bucket([]byte(bucketKeys)).RootPage()); return nil })
	}
	if err == nil {
		raw, err = os.ReadFile(path)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return raw, root
}

// G4: a page that leads to keys, and that says that it leads to fewer of them, is refused
// at the start: behind it keys that were used would be free.
func TestG4HiddenKeysAreNoticedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, number := range map[string]int{"in pages": 100, "in the page of buckets": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "store.db")
			s := openAt(t, path)
			for n := range number {
				submit(t, s, n)
			}
			_ = s.Close()
			raw, root := keysOf(t, path)
			lower := func(count []byte) {
				if n := binary.NativeEndian.Uint16(count); n > 0 {
					binary.NativeEndian.PutUint16(count, n-1)
				}
			}
			if root > 0 {
				lower(raw[int(root)*os.Getpagesize()+10:])
			}
			behind := []byte("keys" + strings.Repeat("\x00", bucketHeaderSize)) // is its page, if it has none of its own
			for at := raw; bytes.Contains(at, behind); {
				at = at[bytes.Index(at, behind)+len(behind):]
				lower(at[10:])
			}
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(t.Context(), Options{Path: path})
			wantCode(t, err, jobs.CodeStoreFailed)
			if problems, err := Check(path); err == nil && len(problems) == 0 {
				t.Error("Check finds nothing")
			}
		})
	}
}

// G4: no bit of a page with keys makes a key free that was used, whether its job is there
// or pruned: not one of what says where they are, nor, of a key whose job is there, one of
// those that it lies under.
func TestG4NoFlippedBitFreesAKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path)
	const number = 200
	var pruned []string
	for n := range number {
		if id := submit(t, s, n).ID; n%2 == 0 {
			if _, err := s.Update(t.Context(), id, storetest.Cancel); err != nil {
				t.Fatal(err)
			}
			pruned = append(pruned, id)
		}
	}
	if gone, err := s.Prune(t.Context(), pruned, "for a test"); err != nil || len(gone) != len(pruned) {
		t.Fatal(gone, err)
	}
	for _, bucket := range []string{bucketKeys, bucketTombstones} {
		from, count := firstLeaf(t, s, bucket)
		behind := from + int64(dataOf(count))
		if bucket == bucketKeys {
			behind += int64(len(keyPlace(jobs.Key{})))
		}
		for at := from + 8; at < behind; at++ { // which page it is, at the start of it, bbolt checks
			testFlippedByte(t, s, at, byte(1)<<(at%8), number)
		}
		for _, at := range separators(t, s, bucket) {
			for bit := range 16 { // of what tells these keys apart
				testFlippedByte(t, s, at+int64(bit/8), byte(1)<<(bit%8), number)
			}
		}
	}
}

// G4: that a key was found to be free counts for one commit. Afterwards the commit looks for
// what damage hides by itself.
func TestG4ACommitLooksForHiddenKeys(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"))
	const number = 100
	for n := range number {
		job := storetest.NewJob(n)
		if _, err := s.LookupKey(t.Context(), jobs.Key{Principal: job.Principal, Text: job.Key}); jobs.CodeOf(err) != jobs.CodeJobNotFound {
			t.Fatal(err)
		}
		submit(t, s, n)
	}
	fenced := jobs.Key{Principal: "orchestrator", Text: "fenced"}
	if _, err := s.LookupKey(t.Context(), fenced); jobs.CodeOf(err) != jobs.CodeJobNotFound {
		t.Fatal(err)
	}
	if _, _, err := s.FenceKey(t.Context(), fenced, jobs.Entry{}); err != nil {
		t.Fatal(err)
	}
	if s.free.take(keyPlace(fenced)) {
		t.Error("a fenced key is still noted as free")
	}
	at, count := firstLeaf(t, s, bucketKeys)
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	setCount := func(n int) {
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint16(nil, uint16(n)), at+10); err != nil {
			t.Fatal(err)
		}
	}
	setCount(count - 1)
	defer setCount(count)
	hidden := 0
	for n := range number {
		got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(n)))
		switch {
		case err == nil && got.Outcome == jobs.SubmitAccepted:
			t.Fatalf("a hidden key was used again: %+v", got)
		case err != nil:
			wantCode(t, err, jobs.CodeRecordDamaged)
			hidden++
		}
	}
	if hidden == 0 {
		t.Error("the damage hides nothing")
	}
}

// separators returns where the keys begin by which the root of a bucket leads to its pages.
func separators(t *testing.T, s *Store, bucket string) (list []int64) {
	t.Helper()
	err := s.view(t.Context(), func(tx *bbolt.Tx) error {
		head, err := inspectFile(s.file, tx.Size())
		if err != nil {
			return err
		}
		w := newPageWalk(s.file, head.current)
		id := uint64(tx.Bucket([]byte(bucket)).RootPage())
		flags, n, raw, ok := w.page(id)
		if !ok || flags != pageFlagBranch || n < 2 {
			return fmt.Errorf("bucket %s has too few pages: %q", bucket, w.problems)
		}
		at := int64(id)*head.current.pageSize + int64(dataOf(n))
		w.children(id, raw, n, func(key []byte, _ uint64) {
			list = append(list, at)
			at += int64(len(key))
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestFreeKeysOfManyPages: in a healthy store a key that was not used is free, wherever
// it would lie, and a flipped bit of what leads to pages that lead to others is refused
// at the start.
func TestFreeKeysOfManyPages(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	err := Load(t.Context(), path, func(yield func(*jobs.Job) bool) {
		for n := range 20_000 {
			j := storetest.NewJob(n)
			if _, err := storetest.Cancel(j); err != nil || !yield(j) {
				t.Error(err)
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s := openAt(t, path)
	for n := range 4_000 {
		_, err := s.LookupKey(t.Context(), jobs.Key{Principal: "orchestrator", Text: fmt.Sprint("free-", n)})
		wantCode(t, err, jobs.CodeJobNotFound)
	}
	at := separators(t, s, bucketKeys)
	_ = s.Close()
	raw, root := keysOf(t, path)
	if w := binary.NativeEndian.Uint64(raw[int(root)*os.Getpagesize()+pageHeaderSize+8:]); binary.NativeEndian.Uint16(raw[int(w)*os.Getpagesize()+8:]) != pageFlagBranch {
		t.Fatal("the bucket has too few pages")
	}
	raw[at[1]+1] ^= 1 << 7
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Path: path})
	wantCode(t, err, jobs.CodeStoreFailed)
}

// firstLeaf returns where in the file the first of several leaf pages of a bucket begins.
func firstLeaf(t *testing.T, s *Store, bucket string) (at int64, count int) {
	t.Helper()
	err := s.view(t.Context(), func(tx *bbolt.Tx) error {
		head, err := inspectFile(s.file, tx.Size())
		if err != nil {
			return err
		}
		w := newPageWalk(s.file, head.current)
		for id, depth := uint64(tx.Bucket([]byte(bucket)).RootPage()), 0; ; depth++ {
			flags, n, raw, ok := w.page(id)
			if !ok || flags == pageFlagLeaf && depth == 0 {
				return fmt.Errorf("bucket %s has no leaf pages: %q", bucket, w.problems)
			}
			if flags == pageFlagLeaf {
				at, count = int64(id)*head.current.pageSize, n
				return nil
			}
			id = 0
			w.children(id, raw, n, func(_ []byte, child uint64) {
				if id == 0 {
					id = child
				}
			})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return at, count
}

// testFlippedByte flips bits of a byte in the file of an open store, looks all keys up,
// and makes it right again.
func testFlippedByte(t *testing.T, s *Store, at int64, bit byte, keys int) {
	t.Helper()
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	good := b[0]
	b[0] ^= bit
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	for n := range keys {
		key := jobs.Key{Principal: "orchestrator", Text: fmt.Sprint("key-", n)}
		if _, err := s.LookupKey(t.Context(), key); jobs.CodeOf(err) == jobs.CodeJobNotFound {
			t.Errorf("byte %d of page %d, bit %#x: key %d is free", at%int64(os.Getpagesize()), at/int64(os.Getpagesize()), bit, n)
			break
		}
	}
	b[0] = good
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}
