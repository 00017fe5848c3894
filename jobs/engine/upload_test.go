package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func announced(content string, offset int) UploadRequest {
	return UploadRequest{SHA256: digestOf(content), Size: int64(len(content)), Offset: int64(offset)}
}

// begin opens a stream and writes the piece.
func (h *host) begin(c Caller, req UploadRequest, piece string) *Upload {
	h.t.Helper()
	u, err := h.Upload(h.t.Context(), c, req)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(u.Abort)
	if _, err := u.Write([]byte(piece)); err != nil {
		h.t.Fatal(err)
	}
	return u
}

func (h *host) upload(c Caller, content string) {
	h.t.Helper()
	if _, err := h.begin(c, announced(content, 0), content).Commit(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want jobs.Code) {
	t.Helper()
	if jobs.CodeOf(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// wantStatus holds where an upload of the content stands; -1: it is there.
func (h *host) wantStatus(c Caller, content string, offset int64) {
	h.t.Helper()
	s, err := h.StatUpload(h.t.Context(), c, digestOf(content), int64(len(content)))
	if err != nil {
		h.t.Fatal(err)
	}
	if there := s.File != nil; there != (offset < 0) || !there && s.Offset != offset || there && s.Offset != int64(len(content)) {
		h.t.Errorf("the upload stands at %d, file %v; want %d", s.Offset, s.File, offset)
	}
}

// entries lists what lies in the folder of the blobs: on its way in, and in place.
func (h *host) entries() (incoming, shelved []string) {
	h.t.Helper()
	all, err := filepath.Glob(filepath.Join(h.state, "blobs", "*", "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, path := range all {
		if dir, name := filepath.Split(path); filepath.Base(dir) == "incoming" {
			incoming = append(incoming, name)
		} else {
			shelved = append(shelved, name)
		}
	}
	return incoming, shelved
}

// An upload is gone on with where it stands, by its principal alone.
func TestUploadIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const content = "the content of a file"
	other := Caller{Principal: "other"}
	h.wantStatus(owner(), content, 0)
	first := h.begin(owner(), announced(content, 0), content[:5])
	h.wantStatus(owner(), content, 5)

	// G10: what somebody else sends is not there, and its digest opens nothing.
	h.wantStatus(other, content, 0)
	_, err := h.Upload(t.Context(), other, announced(content, 5))
	wantCode(t, err, jobs.CodeRequestInvalid)
	h.wantStatus(owner(), content, 5)

	// The newer stream counts.
	second := h.begin(owner(), announced(content, 5), content[5:9])
	_, err = first.Write([]byte("late"))
	wantCode(t, err, jobs.CodeUploadInProgress)
	_, err = first.Commit(t.Context())
	wantCode(t, err, jobs.CodeDigestMismatch) // it is not whole
	first.Abort()
	_, err = h.Upload(t.Context(), owner(), announced(content, 3))
	wantCode(t, err, jobs.CodeRequestInvalid)
	if e, ok := errors.AsType[*jobs.Error](err); !ok || e.Metadata["field"] != "start.offset" || e.Metadata["offset"] != "9" {
		t.Errorf("%+v", err)
	}
	second.Abort()

	// A stream that is closed too early is one that ended early.
	_, err = h.begin(owner(), announced(content, 9), content[9:12]).Commit(t.Context())
	wantCode(t, err, jobs.CodeDigestMismatch)
	h.wantStatus(owner(), content, 12)

	h.Stop()
	h.start()
	h.wantStatus(owner(), content, 12)
	blob, err := h.begin(owner(), announced(content, 12), content[12:]).Commit(t.Context())
	if err != nil || blob.SHA256 != digestOf(content) || blob.Size != int64(len(content)) {
		t.Fatalf("%+v, %v", blob, err)
	}
	h.wantStatus(owner(), content, -1)
	h.wantStatus(other, content, 0)
	_, err = h.StatFile(t.Context(), other, "sha256:"+digestOf(content))
	wantCode(t, err, jobs.CodeFileNotFound)
	_, err = h.StatUpload(t.Context(), owner(), digestOf(content), 3)
	wantCode(t, err, jobs.CodeRequestInvalid)
	if incoming, shelved := h.entries(); len(incoming) != 0 || len(shelved) != 1 {
		t.Errorf("%q, %q", incoming, shelved)
	}
}

// What is not what was announced is dropped, and refusals leave nothing.
func TestUploadsThatAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const content = "content"
	_, err := h.begin(owner(), announced(content, 0), "CONTENT").Commit(t.Context())
	wantCode(t, err, jobs.CodeDigestMismatch)
	h.wantStatus(owner(), content, 0)

	for name, size := range map[string]UploadRequest{
		"resumable": announced(content, 0),
		"no digest": {Size: int64(len(content))},
	} {
		u := h.begin(owner(), size, content)
		_, err := u.Write([]byte("x"))
		if jobs.CodeOf(err) != jobs.CodeDigestMismatch {
			t.Errorf("%s: too long: %v", name, err)
		}
		h.wantStatus(owner(), content, 0)
	}
	short := h.begin(owner(), UploadRequest{Size: 9}, content)
	_, err = short.Commit(t.Context())
	wantCode(t, err, jobs.CodeDigestMismatch)
	short.Abort()
	_, err = h.Upload(t.Context(), owner(), UploadRequest{Size: -1, Offset: 1})
	wantCode(t, err, jobs.CodeRequestInvalid)
	_, err = h.Upload(t.Context(), owner(), UploadRequest{Size: math.MaxInt64})
	wantCode(t, err, jobs.CodeFileTooLarge)
	for _, offset := range []int{-1, math.MinInt, math.MaxInt, 1, len(content)} {
		_, err = h.Upload(t.Context(), owner(), announced(content, offset))
		wantCode(t, err, jobs.CodeRequestInvalid)
	}

	// More than the disk has, by a known number.
	l := h.limits()
	l.UploadBytes = math.MaxInt64
	if err := h.Reconfigure(t.Context(), owner(), l, nil, []string{"limits.upload_bytes"}); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 60
	for _, req := range []UploadRequest{{Size: size}, {SHA256: digestOf(content), Size: size}} {
		_, err = h.Upload(t.Context(), owner(), req)
		wantCode(t, err, jobs.CodeDiskFull)
		e, _ := errors.AsType[*jobs.Error](err)
		if n, err := strconv.ParseInt(e.Metadata["missing_bytes"], 10, 64); err != nil || n <= 0 || n >= size {
			t.Errorf("%+v", e)
		}
	}
	if incoming, shelved := h.entries(); len(incoming)+len(shelved) != 0 {
		t.Errorf("left: %q, %q", incoming, shelved)
	}
}

// blobFaults stops at the two moments between a record and its file.
type blobFaults struct {
	jobs.Store

	put, collected error
}

func (s *blobFaults) PutBlob(ctx context.Context, b jobs.Blob) error {
	return errors.Join(s.Store.PutBlob(ctx, b), s.put)
}

func (s *blobFaults) CollectBlobs(ctx context.Context, before time.Time, limit int) ([]jobs.Blob, error) {
	gone, err := s.Store.CollectBlobs(ctx, before, limit)
	if s.collected != nil {
		return nil, s.collected
	}
	return gone, err
}

// Wherever a crash comes between a record and its file, the upload can be finished
// without sending it again, or the file is removed; never is a file promised that is
// not there.
func TestCrashBetweenRecordAndFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Stop()
	faults := &blobFaults{Store: h.store.Store, put: errors.New("the daemon died here")}
	h.store.Store = faults
	h.start()
	const content = "the content of a file"
	if _, err := h.begin(owner(), announced(content, 0), content).Commit(t.Context()); err == nil {
		t.Fatal("it was committed")
	}
	h.Stop()
	faults.put = nil
	h.start()
	_, err := h.StatFile(t.Context(), owner(), "sha256:"+digestOf(content))
	wantCode(t, err, jobs.CodeFileNotFound) // the record is there
	h.wantStatus(owner(), content, int64(len(content)))
	if _, err := h.begin(owner(), announced(content, len(content)), "").Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(owner(), content, -1)

	// The record goes, then the daemon dies.
	h.Stop()
	faults.collected = errors.New("the daemon died here")
	h.start()
	if err := h.collectBlobs(t.Context(), time.Now().Add(time.Hour)); err == nil {
		t.Fatal("nothing went wrong")
	}
	if _, shelved := h.entries(); len(shelved) != 1 {
		t.Fatalf("%q", shelved)
	}
	if err := h.removeStrays(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, shelved := h.entries(); len(shelved) != 1 {
		t.Fatalf("a file that was written just now: %q", shelved)
	}
	if err := h.removeStrays(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if incoming, shelved := h.entries(); len(incoming)+len(shelved) != 0 {
		t.Errorf("left: %q, %q", incoming, shelved)
	}

	// A record whose file is gone is no file, is healed by an upload, and is collected
	// like any other.
	h.Stop()
	faults.collected = nil
	h.start()
	h.upload(owner(), content)
	path := filepath.Join(h.state, "blobs", digestOf(content)[:2], digestOf(content))
	for _, spoil := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("short"), 0o400)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		h.wantStatus(owner(), content, 0)
		h.upload(owner(), content)
		h.wantStatus(owner(), content, -1)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := h.collectBlobs(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	_, err = h.store.GetBlob(t.Context(), digestOf(content))
	wantCode(t, err, jobs.CodeFileNotFound)
}

// What a job needs stays; a call that comes too late is told at once.
func TestUploadsAreCollected(t *testing.T) {
	t.Parallel()
	h := newHost(t, manifest("hold", "none", "until test -e tmp/go; do sleep 0.01; done; cat in/*", plainResult))
	const needed, unused = "needed by a job", "needed by nobody"
	h.upload(owner(), needed)
	h.upload(owner(), unused)
	job := h.submit("hold", fmt.Sprintf(`{"input":"sha256:%s"}`, digestOf(needed)))
	h.await(job.ID, running)
	later := time.Now().Add(time.Hour)
	if err := h.collectBlobs(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(owner(), unused, -1)
	if err := h.collectBlobs(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(owner(), needed, -1)
	h.wantStatus(owner(), unused, 0)
	_, err := h.Submit(t.Context(), owner(), Request{
		Tool: "hold", Key: "late", Arguments: []byte(fmt.Sprintf(`{"input":"sha256:%s"}`, digestOf(unused))), Purpose: jobs.PurposeProduction,
	})
	wantCode(t, err, jobs.CodeArgumentsBusiness)
	if err := os.WriteFile(filepath.Join(h.exec.AttemptDir(job.ID, 1).Work(), "tmp", "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.await(job.ID, settled)
	if err := h.collectBlobs(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(owner(), needed, 0)
	if incoming, shelved := h.entries(); len(incoming)+len(shelved) != 0 {
		t.Errorf("left: %q, %q", incoming, shelved)
	}
}

// StatUpload says that nothing needs to be sent only of a file that stays a while.
func TestStatUploadKeepsTheFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const content = "content"
	h.upload(owner(), content)
	if _, err := h.store.CollectBlobs(t.Context(), time.Now().Add(time.Hour), 0); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-23 * time.Hour)
	if err := h.store.PutBlob(t.Context(), jobs.Blob{SHA256: digestOf(content), Size: int64(len(content)), Principals: []string{"owner"}, StoredAt: old}); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(owner(), content, -1)
	if blob, err := h.store.GetBlob(t.Context(), digestOf(content)); err != nil || time.Since(blob.LastUse()) > time.Hour {
		t.Errorf("%+v, %v", blob, err)
	}
}

// Uploads and sweeps at the same moment: whoever is told that a file is there has it,
// or it was collected as a whole.
func TestSweepBesideUploads(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var uploads, sweeps sync.WaitGroup
	done := make(chan struct{})
	sweeps.Go(func() {
		for {
			if err := errors.Join(h.collectBlobs(t.Context(), time.Now().Add(time.Hour)), h.removeStrays(t.Context(), time.Now().Add(time.Hour))); err != nil {
				t.Error(err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for i := range 4 {
		uploads.Go(func() {
			c := Caller{Principal: fmt.Sprint("p", i)}
			for n := range 25 {
				content := fmt.Sprint("content ", n%3)
				u, err := h.Upload(t.Context(), c, announced(content, 0))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err = u.Write([]byte(content)); err == nil {
					_, err = u.Commit(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
				u.Abort()
			}
		})
	}
	uploads.Wait()
	close(done)
	sweeps.Wait()
	incoming, shelved := h.entries()
	if len(incoming) > 0 {
		t.Errorf("left: %q", incoming)
	}
	for n := range 3 {
		digest := digestOf(fmt.Sprint("content ", n))
		_, err := h.store.GetBlob(t.Context(), digest)
		f, _, missing := h.blobs.Open(digest)
		if (err == nil) != (missing == nil) {
			t.Errorf("record: %v; file: %v; %q", err, missing, shelved)
		}
		if missing == nil {
			f.Close()
		}
	}
}

// A file is read for its digest once, until anything about it changes; and the notes
// do not grow without bound.
func TestVerifiedNotes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var v verified
	digest := func(want string) {
		t.Helper()
		if got, err := v.digest(t.Context(), f); err != nil || got != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	digest(digestOf("content"))
	if len(v.notes) != 0 {
		t.Error("a file that changed just now is noted")
	}
	facts, err := files.FactsOf(f)
	if err != nil {
		t.Fatal(err)
	}
	v.note(stateOf(facts), "as noted")
	digest("as noted")
	if err := os.WriteFile(path, []byte("CONTENT"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, facts.ModTime, facts.ModTime); err != nil {
		t.Fatal(err)
	}
	digest(digestOf("CONTENT"))
	for i := range uint64(2 * mostVerified) {
		v.note(fileState{inode: i}, "x")
	}
	if len(v.notes) != mostVerified {
		t.Errorf("%d notes", len(v.notes))
	}
}
