package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// A copy that was made before an upgrade is as good as another one: it is looked through,
// can be copied, and is upgraded on the way to its place. One of it that is damaged is
// refused.
func TestCopiesOfOldStoresAreRestored(t *testing.T) {
	t.Parallel()
	for version := uint64(firstSchema); version <= schemaVersion(migrations()); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			from := unpack(t, storeFile(version))
			if problems, err := Check(from); err != nil || len(problems) > 0 {
				t.Errorf("Check: %q, %v", problems, err)
			}
			if _, err := Backup(t.Context(), from, &bytes.Buffer{}); err != nil {
				t.Error(err)
			}
			path := filepath.Join(t.TempDir(), "store.db")
			if _, _, err := Restore(t.Context(), from, AdoptOptions{Path: path, By: "owner", Reason: "r"}); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			s := openAt(t, path)
			got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(2)))
			if err != nil || got.Outcome != jobs.SubmitReplayed {
				t.Errorf("got %+v, %v", got, err)
			}
			if r, err := s.Restored(t.Context()); err != nil || r == nil {
				t.Errorf("%v, %v", r, err)
			}
			_ = s.Close()
			if problems, err := Check(path); err != nil || len(problems) > 0 {
				t.Errorf("Check: %q, %v", problems, err)
			}

			raw, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			spoiled := bytes.ReplaceAll(raw, []byte(`"state":"queued"`), []byte(`"state":"quexed"`))
			if err := os.WriteFile(from, spoiled, 0o600); err != nil || bytes.Equal(raw, spoiled) {
				t.Fatal("nothing is spoiled", err)
			}
			_, _, err = Restore(t.Context(), from, AdoptOptions{Path: path, By: "owner", Reason: "r"})
			wantCode(t, err, jobs.CodeStoreFailed)
		})
	}
}

// G3: a store that is made while a copy is on its way to where none was is not replaced:
// a daemon uses it, and what it has accepted would be gone.
func TestG3RestoreReplacesNoStoreThatItDoesNotHold(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	job := submit(t, s, 1)
	temp := filepath.Join(filepath.Dir(s.path), "copy")
	if err := os.WriteFile(temp, []byte("a copy"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := putInPlace(temp, s.path, false)
	wantCode(t, err, jobs.CodeStoreFailed)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, s.path).Get(t.Context(), job.ID); err != nil {
		t.Error(err)
	}
}

// A restore is also the way out when the witness cannot be read: the store that is then in
// place is one that somebody decided to use.
func TestRestoreWithADamagedWitness(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	submit(t, s, 1)
	_ = s.Close()
	from := filepath.Join(t.TempDir(), "copy.db")
	raw, err := os.ReadFile(s.path)
	if err := errors.Join(err, os.WriteFile(from, raw, 0o600), os.WriteFile(witnessPath(s.path), []byte("not that"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), from, AdoptOptions{Path: s.path, By: "owner", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	if r, err := openAt(t, s.path).Restored(t.Context()); err != nil || r == nil {
		t.Errorf("%v, %v", r, err)
	}
}

// What a killed process left beside the store is removed by the next one that has it; what
// is of another store in the folder is not.
func TestTempsOfTheKilledAreRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	_ = openAt(t, path).Close()
	temp := func(path, use string) string {
		f, err := os.CreateTemp(filepath.Dir(path), tempPattern(path, use))
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	var gone []string
	for _, use := range []string{restoreTemp, compactTemp, upgradeTemp, copyTemp, witnessTemp} {
		gone = append(gone, temp(path, use))
	}
	gone = append(gone, temp(gone[0], upgradeTemp))
	stays := temp(filepath.Join(filepath.Dir(path), "other.db"), restoreTemp)
	openAt(t, path)
	for _, name := range gone {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(stays); err != nil {
		t.Error(err)
	}
}

// The remark of a process that was killed counts for nothing, whoever has its number now;
// that of one which lives and uses a store that is gone does.
func TestHolderThatWasKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	said := fmt.Appendf(nil, "%d\nmacexec serve\n", os.Getppid())
	if err := os.WriteFile(path+holderSuffix, said, 0o600); err != nil {
		t.Fatal(err)
	}
	o := AdoptOptions{Path: path, By: "owner", Reason: "r", Empty: true}
	if _, err := Adopt(t.Context(), o); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path + holderSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the remark is still there: %v", err)
	}
	s := openAt(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if pid, _ := readHolder(path); pid != os.Getpid() {
		t.Errorf("the holder is %d", pid)
	}
	_, err := Adopt(t.Context(), o)
	wantCode(t, err, jobs.CodeStoreFailed)
	_ = s.Close()
	if _, err := Adopt(t.Context(), o); err != nil {
		t.Error(err)
	}
}
