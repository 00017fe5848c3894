package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func hexOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// receiver takes uploads in as a daemon does, for one file.
type receiver struct {
	digest string
	got    []byte // what has come in
	sent   int    // bytes that were sent in all
	breaks func(n int, r *receiver) error
}

func (r *receiver) stat() (*macexecv1.StatUploadResponse, error) {
	if hexOf(r.got) == r.digest {
		return &macexecv1.StatUploadResponse{Offset: int64(len(r.got)), File: &macexecv1.FileInfo{Reference: "sha256:" + r.digest, Sha256: r.digest, Size: int64(len(r.got))}}, nil
	}
	return &macexecv1.StatUploadResponse{Offset: int64(len(r.got))}, nil
}

func (r *receiver) take(t *testing.T, n int, s grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	if at := int(first.GetStart().GetOffset()); at != 0 && at != len(r.got) {
		return answer(t, codes.InvalidArgument, &macexecv1.Error{Code: "REQUEST_INVALID", Metadata: map[string]string{"field": "start.offset"}})
	} else if at == 0 {
		r.got = nil
	}
	for {
		if err := r.breaks(n, r); err != nil {
			return err
		}
		req, err := s.Recv()
		if err != nil {
			break
		}
		r.got = append(r.got, req.GetChunk()...)
		r.sent += len(req.GetChunk())
	}
	if hexOf(r.got) != r.digest {
		r.got = nil
		return answer(t, codes.InvalidArgument, &macexecv1.Error{Code: "DIGEST_MISMATCH"})
	}
	return s.SendAndClose(&macexecv1.UploadFileResponse{File: &macexecv1.FileInfo{Reference: "sha256:" + r.digest, Sha256: r.digest, Size: int64(len(r.got))}})
}

// TestUploadGoesOn: whatever stops an upload half-way, the next try sends what is
// missing; what came in wrong is sent anew, once.
func TestUploadGoesOn(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	gone := func(t *testing.T, code string, more map[string]string) error {
		t.Helper()
		return answer(t, codes.Unavailable, &macexecv1.Error{Code: code, Metadata: more})
	}
	tests := map[string]struct {
		before []byte // what an earlier process brought over
		breaks func(n int, r *receiver) error
		most   int // bytes that may be sent
		want   string
	}{
		"whole":             {breaks: func(int, *receiver) error { return nil }, most: len(content)},
		"of an earlier run": {before: content[:900_000], breaks: func(int, *receiver) error { return nil }, most: len(content) - 900_000},
		"all but an answer": {before: content, breaks: func(int, *receiver) error { return nil }},
		"breaks": {most: len(content), breaks: func(n int, r *receiver) error {
			if n < 4 && len(r.got) >= n*200_000 {
				return gone(t, "HOST_DRAINING", nil)
			}
			return nil
		}},
		"has moved": {most: len(content), breaks: func(n int, r *receiver) error {
			if n == 1 {
				r.got = bytes.Clone(content[:500_000])
				return gone(t, "REQUEST_INVALID", map[string]string{"field": "start.offset"})
			}
			return nil
		}},
		"another sends it": {most: 0, breaks: func(_ int, r *receiver) error {
			r.got = bytes.Clone(content) // the other one has finished
			return gone(t, "UPLOAD_IN_PROGRESS", nil)
		}},
		"wrong bytes": {before: content[1:500_000], most: 2 * len(content), breaks: func(int, *receiver) error { return nil }},
		"refused":     {breaks: func(int, *receiver) error { return gone(t, "DISK_FULL", nil) }, want: "DISK_FULL"},
		"never right": {before: content[1:500_000], most: 2 * len(content), want: "DIGEST_MISMATCH", breaks: func(_ int, r *receiver) error {
			if len(r.got) > 600_000 {
				r.got[0] ^= 1
			}
			return nil
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &receiver{digest: hexOf(content), got: bytes.Clone(tc.before), breaks: tc.breaks}
			d := &daemon{stat: r.stat, upload: func(n int, s grpc.ClientStreamingServer[macexecv1.UploadFileRequest, macexecv1.UploadFileResponse]) error {
				return r.take(t, n, s)
			}}
			var done, total int64
			info, err := start(t, d, long).UploadFrom(t.Context(), bytes.NewReader(content), client.OnProgress(func(d, n int64) { done, total = d, n }))
			if tc.want != "" {
				if e := failure(t, err); e.Code() != tc.want {
					t.Errorf("%v", e)
				}
				return
			}
			if err != nil || info.GetSha256() != r.digest {
				t.Fatalf("%v, %v", info, err)
			}
			if r.sent > tc.most {
				t.Errorf("%d bytes were sent, %d are needed", r.sent, tc.most)
			}
			if done != total || total != int64(len(content)) {
				t.Errorf("told of %d of %d bytes", done, total)
			}
		})
	}
	if _, err := dial(t, socket(t), long).UploadFrom(t.Context(), bytes.NewReader(content)); !failure(t, err).NotReached() {
		t.Errorf("where nobody answers: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(t, socket(t), long).UploadFrom(ctx, bytes.NewReader(content)); !errors.Is(err, context.Canceled) {
		t.Errorf("of a caller that is gone: %v", err)
	}
}

// sender is a daemon that has one file.
func sender(content []byte, breaks func(n int, offset int64) error) *daemon {
	info := &macexecv1.FileInfo{Reference: "r", Sha256: hexOf(content), Size: int64(len(content)), TransferSize: int64(len(content))}
	return &daemon{info: info, download: func(n int, req *macexecv1.DownloadFileRequest, s grpc.ServerStreamingServer[macexecv1.DownloadFileResponse]) error {
		for at := req.GetOffset(); ; at += 1000 {
			if err := breaks(n, at); err != nil {
				return err
			}
			end := min(at+1000, int64(len(content)))
			if err := s.Send(&macexecv1.DownloadFileResponse{File: info, Offset: at, Chunk: content[at:end]}); err != nil || end == int64(len(content)) {
				return err
			}
		}
	}}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]string, 0, len(entries))
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

// TestDownloadOfAnotherRun: what one run of a client brought over another one goes on
// with, if it is a part of the same; and nothing of the caller's own is touched.
func TestDownloadOfAnotherRun(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789"), 1000)
	refused := answer(t, codes.NotFound, &macexecv1.Error{Code: "ARTIFACT_GONE"})
	part := func(t *testing.T, path string) {
		t.Helper()
		_, err := start(t, sender(content, func(_ int, at int64) error {
			if at >= 4000 {
				return refused
			}
			return nil
		}), long).Download(t.Context(), "r", path)
		if failure(t, err).Code() != "ARTIFACT_GONE" || names(t, filepath.Dir(path)) != "out.part out.part.json" {
			t.Fatalf("%v; %s", err, names(t, filepath.Dir(path)))
		}
		if fi, err := os.Stat(path + ".part"); err != nil || fi.Mode().Perm() != 0o600 || fi.Size() != 4000 {
			t.Fatalf("%v, %v", fi, err)
		}
	}
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		spoil func(t *testing.T, path string)
		begin int64 // where the second run may begin
		want  error
		left  string
	}{
		"goes on": {func(*testing.T, string) {}, 4000, nil, "out"},
		"another file": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path+".part.json", `{"reference":"r","sha256":"`+hexOf([]byte("x"))+`","transfer_size":10000}`)
		}, 0, nil, "out"},
		"too long":               {func(t *testing.T, path string) { t.Helper(); write(t, path+".part", strings.Repeat("x", 10001)) }, 0, nil, "out"},
		"wrong bytes":            {func(t *testing.T, path string) { t.Helper(); write(t, path+".part", strings.Repeat("x", 4000)) }, 0, nil, "out"},
		"whole but for its name": {func(t *testing.T, path string) { t.Helper(); write(t, path+".part", string(content)) }, 10000, nil, "out"},
		"named but for the rest": {func(t *testing.T, path string) {
			t.Helper()
			write(t, path, string(content))
			if err := os.Remove(path + ".part"); err != nil {
				t.Fatal(err)
			}
		}, 10000, nil, "out"},
		"somebody took the place": {func(t *testing.T, path string) { t.Helper(); write(t, path, "mine") }, -1, fs.ErrExist, "out out.part out.part.json"},
		"not of a download": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path + ".part.json"); err != nil {
				t.Fatal(err)
			}
		}, -1, fs.ErrInvalid, "out.part"},
		"a link": {func(t *testing.T, path string) {
			t.Helper()
			if err := errors.Join(os.Remove(path+".part"), os.Symlink("/etc/passwd", path+".part")); err != nil {
				t.Fatal(err)
			}
		}, -1, fs.ErrInvalid, "out.part"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "out")
			part(t, path)
			tc.spoil(t, path)
			begin := int64(-1)
			_, err := start(t, sender(content, func(_ int, at int64) error {
				if begin < 0 || at < begin {
					begin = at
				}
				return nil
			}), long).Download(t.Context(), "r", path)
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("%v", err)
			}
			if errors.Is(tc.want, fs.ErrExist) && !errors.Is(err, fs.ErrExist) {
				t.Errorf("%v", err)
			}
			if got := names(t, filepath.Dir(path)); got != tc.left {
				t.Errorf("left: %s", got)
			}
			if tc.want != nil {
				return
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if begin >= 0 && begin != tc.begin {
				t.Errorf("began at %d, want %d", begin, tc.begin)
			}
		})
	}
}

// TestDownloadIsAlone: two downloads to one place do not mix.
func TestDownloadIsAlone(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789"), 1000)
	path := filepath.Join(t.TempDir(), "out")
	reached, release := make(chan struct{}), make(chan struct{})
	c := start(t, sender(content, func(_ int, at int64) error {
		if at == 4000 {
			close(reached)
			<-release
		}
		return nil
	}), long)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Download(t.Context(), "r", path)
		ended <- err
	}()
	<-reached
	if _, err := c.Download(t.Context(), "r", path); err == nil || !strings.Contains(err.Error(), "another download") {
		t.Errorf("the second: %v", err)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := names(t, filepath.Dir(path)); got != "out" {
		t.Errorf("left: %s", got)
	}
}

// TestDownloadRaw: the bytes after an offset, and no fewer than were announced.
func TestDownloadRaw(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789"), 1000)
	d := sender(content, func(n int, at int64) error {
		if n == 1 && at >= 5000 {
			return answer(t, codes.Unavailable, &macexecv1.Error{Code: "HOST_DRAINING"})
		}
		return nil
	})
	c := start(t, d, long)
	var got bytes.Buffer
	if _, err := c.DownloadRaw(t.Context(), "r", 3000, &got); err != nil || !bytes.Equal(got.Bytes(), content[3000:]) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	d.info.TransferSize++
	if _, err := c.DownloadRaw(t.Context(), "r", 3000, &got); err == nil {
		t.Error("fewer bytes than announced, and no error")
	}
}

// A download replaces a regular file and nothing else, and leaves nothing beside what it
// may not replace.
func TestDownloadReplacesOnlyRegularFiles(t *testing.T) {
	t.Parallel()
	content := []byte("new")
	c := start(t, sender(content, func(int, int64) error { return nil }), long)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("old"), 0o600), os.Symlink("file", at("link")), os.Mkdir(at("folder"), 0o700), unix.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{at("link"), at("folder"), at("pipe"), ""} {
		if _, err := c.Download(t.Context(), "r", path, client.Replace()); err == nil {
			t.Errorf("%q was replaced", path)
		}
	}
	if got := names(t, dir); got != "file folder link pipe" {
		t.Errorf("there are %s", got)
	}
	if _, err := c.Download(t.Context(), "r", at("file"), client.Replace()); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(at("file")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file has %q, %v", got, err)
	}
	if _, err := os.Stat(".part.json"); err == nil {
		t.Error("a file without a name has left a part")
	}
	if _, err := c.Upload(t.Context(), at("pipe")); err == nil {
		t.Error("a pipe was uploaded")
	}
}
