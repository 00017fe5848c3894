package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

const (
	witnessName    = "witness.json"
	witnessVersion = 1
	// witnessLag is how old a witness may get while the store grows, but for the time
	// that writing one takes.
	witnessLag = time.Second
)

// witness says, beside a store and not in it, which store it is and how far it had
// come. By it a start tells a host that had a store from a new one, and the store that
// was there last from a copy of an earlier day. It is written after what it says is on
// stable storage, so a store that has come further is in order.
type witness struct {
	Version   int       `json:"version"`
	HostID    string    `json:"host_id"`
	CreatedAt string    `json:"created_at"` // of the store
	Seq       uint64    `json:"journal_head"`
	Hash      string    `json:"journal_hash"` // of that entry; two stores of one origin differ in it
	At        time.Time `json:"at"`
}

func witnessPath(storePath string) string { return filepath.Join(filepath.Dir(storePath), witnessName) }

// readWitness returns the witness of a store, or nil if there is none.
func readWitness(storePath string) (*witness, error) {
	path := witnessPath(storePath)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no witness is in order
	}
	if err == nil {
		var w witness
		if w, err = parseWitness(raw); err == nil {
			return &w, nil
		}
	}
	return nil, jobs.Errorf(jobs.CodeStoreReplaced,
		"%s cannot be read, so nobody can tell whether the store beside it is the newest: %v; make sure that it is, then say so: macexec store adopt --reason TEXT", path, err).With("path", path)
}

// parseWitness reads what a witness says.
func parseWitness(raw []byte) (w witness, err error) {
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, err
	}
	hash, err := hex.DecodeString(w.Hash)
	switch {
	case w.Version != witnessVersion:
		return w, fmt.Errorf("it has version %d, and this macexec knows %d", w.Version, witnessVersion)
	case !validHostID(w.HostID), err != nil, len(hash) != len(chainHead{}.hash):
		return w, errors.New("it is damaged")
	}
	return w, nil
}

// writeWitness puts a witness in the place of the last one, durably.
func writeWitness(storePath string, w witness) error {
	raw, err := json.MarshalIndent(w, "", "  ")
	if err != nil {
		return err
	}
	path := witnessPath(storePath)
	temp, err := os.CreateTemp(filepath.Dir(path), tempPattern(storePath, witnessTemp))
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(append(raw, '\n'))
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// testify is the witness of a store as a transaction sees it.
func testify(tx *bbolt.Tx, now time.Time) (w witness, ok bool) {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return w, false
	}
	head, ok := decodeChainHead(meta.Get([]byte(metaJournalHead)))
	return witness{
		Version: witnessVersion, HostID: string(meta.Get([]byte(metaHostID))), CreatedAt: string(meta.Get([]byte(metaCreatedAt))),
		Seq: head.seq, Hash: hex.EncodeToString(head.hash[:]), At: now.UTC(),
	}, ok
}

// Missing refuses a folder that had a store and has none. Nil: it has one, or is new.
func Missing(path string) error {
	// First the witness: who makes a store makes that first.
	known, err := readWitness(path)
	if _, statErr := os.Lstat(path); !errors.Is(statErr, fs.ErrNotExist) {
		return nil // opening it says what is wrong
	}
	if known == nil && err == nil {
		return nil
	}
	e := jobs.Errorf(jobs.CodeStoreMissing,
		"the store %s is gone, and with a new one every key would be free again; put it back, or a copy of it: macexec store restore FILE. Only if there is none, begin anew: macexec store adopt --empty --reason TEXT", path).With("path", path)
	if known != nil {
		e = e.With("journal_head", strconv.FormatUint(known.Seq, 10)).With("witnessed_at", known.At.Format(time.RFC3339))
	}
	return e
}

// recognize refuses a store that is not the one which was here last, or that has
// forgotten. The file is not touched. whole says that both its head pages are.
func recognize(o Options, db *bbolt.DB, whole bool) error {
	path := o.Path
	known, err := readWitness(path)
	if err != nil {
		return err
	}
	var verdict *jobs.Error
	err = guarded(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if readSchemaVersion(tx) < firstSchema {
				return nil // it is no store, which is said later
			}
			here, ok := testify(tx, time.Time{})
			if !ok {
				return nil
			}
			r, err := readRestore(tx)
			if decided := err == nil && r != nil && known != nil && r.Known == known.standing(); !decided { // seeing this very witness
				verdict = here.compare(tx, known, whole)
			}
			if verdict == nil {
				verdict = forgetful(tx, o)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return errDamaged(path, err)
	case verdict == nil:
		return nil
	}
	verdict.Message = "the store " + path + " is left as it is, since " + verdict.Message +
		". Put the right one back. If there is none, say that this one is to be used: macexec store adopt --reason TEXT"
	verdict = verdict.With("path", path)
	if known != nil {
		verdict = verdict.With("journal_head", strconv.FormatUint(known.Seq, 10)).With("witnessed_at", known.At.Format(time.RFC3339))
	}
	return verdict
}

// compare says what is wrong with a store by what is known of it.
func (w witness) compare(tx *bbolt.Tx, known *witness, whole bool) *jobs.Error {
	switch {
	case !whole && (known == nil || w.standing() != known.standing()):
		// bbolt goes by the other one, which may lack the newest write.
		return jobs.Errorf(jobs.CodeStoreOlder, "one of its two head pages is damaged, so its newest write may be missing")
	case known == nil:
		return nil
	case w.HostID != known.HostID || w.CreatedAt != known.CreatedAt:
		return jobs.Errorf(jobs.CodeStoreReplaced, "it is of host %s, and the one that was here is of host %s", w.HostID, known.HostID)
	case w.Seq < known.Seq:
		return jobs.Errorf(jobs.CodeStoreOlder, "it is older than the one that was here: its newest journal entry is %d, and that one had %d at %s",
			w.Seq, known.Seq, known.At.Format(time.RFC3339))
	}
	switch hash := entryHash(tx, known.Seq, w); {
	case hash == "" && known.Seq <= anchorSeq(tx) && known.Seq > 0:
		return jobs.Errorf(jobs.CodeStoreReplaced, "its journal has no entry %d any more, by which it could be known", known.Seq)
	case hash != "" && hash != known.Hash:
		return jobs.Errorf(jobs.CodeStoreReplaced, "its history is another one than that of the store that was here: they differ at journal entry %d or before", known.Seq)
	}
	return nil
}

// anchorSeq is the Seq of the newest entry that was dropped from the journal.
func anchorSeq(tx *bbolt.Tx) uint64 {
	anchor, _ := readAnchor(tx)
	return anchor.seq
}

// entryHash is the hash of a journal entry, as it says itself, or the one behind it, or the
// anchor; "" if none of them can.
func entryHash(tx *bbolt.Tx, seq uint64, head witness) string {
	anchor, _ := readAnchor(tx)
	journal := tx.Bucket([]byte(bucketJournal))
	switch {
	case seq == head.Seq:
		return head.Hash
	case seq == anchor.seq && anchor.hash != chainHead{}.hash:
		return hex.EncodeToString(anchor.hash[:])
	case journal == nil:
		return ""
	}
	if e, err := (rawEntry{seq, journal.Get(encodeU64(seq))}).decode(); err == nil {
		return e.Hash
	}
	if e, err := (rawEntry{seq + 1, journal.Get(encodeU64(seq + 1))}).decode(); err == nil {
		return e.Prev
	}
	return ""
}

// standing is a witness without the time.
func (w witness) standing() jobs.StoreStanding {
	return jobs.StoreStanding{HostID: w.HostID, Head: w.Seq, Hash: w.Hash}
}

// witnessing writes down how far the store has come, while it grows, and again where
// somebody took the witness away. At each beat it also looks whether the store is still
// where the next start looks for it.
func (s *Store) witnessing() {
	defer close(s.witnessed)
	var told uint64
	beat := time.NewTicker(witnessLag)
	defer beat.Stop()
	for failing := false; ; {
		if s.head.Load() > told || told == 0 || !s.witnessStands() {
			seq, err := s.testify()
			switch {
			case err == nil:
				told = max(seq, 1) // of an empty store, too, it was told
			case !failing && s.usable() == nil:
				s.log.Error("the witness of the store cannot be written; a store that is put in its place may not be noticed", "path", witnessPath(s.path), "error", err)
			}
			failing = err != nil
		}
		select {
		case <-beat.C:
		case <-s.closing:
			return
		case <-s.failed:
			return
		}
		if err := s.displaced(); err != nil {
			s.fail(err)
			return
		}
	}
}

// witnessStands reports whether the witness that was written last is still there.
func (s *Store) witnessStands() bool {
	info, err := os.Lstat(witnessPath(s.path))
	return err == nil && s.witnessFile != nil && os.SameFile(info, s.witnessFile)
}

// displaced says why nothing can be written to the store any more though it can: another
// file, or none, has its name, so the next start would not find what is written.
func (s *Store) displaced() error {
	mine, err := s.file.Stat()
	if err != nil {
		return nil //nolint:nilerr // a write will tell
	}
	switch now, err := os.Stat(s.path); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the file %s was removed or renamed while it was in use; put it back, then start macexec serve again", s.path)
	case err == nil && !os.SameFile(mine, now):
		return fmt.Errorf("another file was put in the place of %s while that was in use; put the right one back, then start macexec serve again", s.path)
	}
	return nil
}

// testify writes the witness of what is on stable storage now.
func (s *Store) testify() (seq uint64, err error) {
	var w witness
	err = s.view(context.Background(), func(tx *bbolt.Tx) error {
		var ok bool
		if w, ok = testify(tx, s.now()); !ok {
			return errors.New("the store does not say where its journal ends")
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := writeWitness(s.path, w); err != nil {
		return 0, err
	}
	s.witnessFile, err = os.Lstat(witnessPath(s.path))
	return w.Seq, err
}

// testifyLast writes the exact witness of a store that is closed after its last write.
// One that failed may show what is not on stable storage.
func (s *Store) testifyLast() {
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil || s.wedged || s.unwitnessed {
		return
	}
	var w witness
	ok := false
	err := guarded(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			w, ok = testify(tx, s.now())
			return nil
		})
	})
	if err == nil && ok {
		err = writeWitness(s.path, w)
	}
	if err != nil {
		s.log.Error("the last witness of the store cannot be written", "path", witnessPath(s.path), "error", err)
	}
}
