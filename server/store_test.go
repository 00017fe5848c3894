package server_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/server"
)

// TestBackupStoreArrivesWhole: whatever its size is with respect to that of a message,
// and one that breaks off is never taken for a copy.
func TestBackupStoreArrivesWhole(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 1 << 20, 1<<20 + 1, 5<<20 + 17} {
		want := bytes.Repeat([]byte("store "), size/6+1)[:size]
		path := socket(t)
		serve(t, path, server.Options{Engine: &fakeEngine{backup: func() (jobs.StoreCopy, error) {
			return jobs.StoreCopy{ReadCloser: io.NopCloser(bytes.NewReader(want)), HostID: "abcdefgh", Head: 7, Size: int64(size)}, nil
		}}})
		var got bytes.Buffer
		what, err := dial(t, path).BackupStore(t.Context(), &got)
		if err != nil || !bytes.Equal(got.Bytes(), want) || what.GetHostId() != "abcdefgh" || what.GetJournalHead() != 7 {
			t.Errorf("%d bytes: %d arrived, %v, %v", size, got.Len(), what, err)
		}
	}
	for name, engine := range map[string]*fakeEngine{
		"INTERNAL": {backup: func() (jobs.StoreCopy, error) {
			broken := io.MultiReader(bytes.NewReader(make([]byte, 2<<20)), iotest.ErrReader(errors.New("a bad sector")))
			return jobs.StoreCopy{ReadCloser: io.NopCloser(broken), Size: 3 << 20}, nil
		}},
		"DISK_FULL": {backup: func() (jobs.StoreCopy, error) { return jobs.StoreCopy{}, jobs.Errorf(jobs.CodeDiskFull, "full") }},
	} {
		path := socket(t)
		serve(t, path, server.Options{Engine: engine})
		_, err := dial(t, path).BackupStore(t.Context(), io.Discard)
		if e := failure(t, err); e.Code() != name {
			t.Errorf("got %v, want %s", err, name)
		}
	}
}
