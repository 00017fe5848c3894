package server_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/server"
)

// memoryUpload keeps an upload in memory.
type memoryUpload struct {
	bytes.Buffer

	want    string
	keep    func(digest string, content []byte)
	aborted bool
}

func (u *memoryUpload) Commit(context.Context) (jobs.Blob, error) {
	sum := sha256.Sum256(u.Bytes())
	digest := hex.EncodeToString(sum[:])
	if u.want != "" && u.want != digest {
		return jobs.Blob{}, jobs.Errorf(jobs.CodeDigestMismatch, "other bytes")
	}
	u.keep(digest, u.Bytes())
	return jobs.Blob{SHA256: digest, Size: int64(u.Len()), MediaType: "application/octet-stream"}, nil
}

func (u *memoryUpload) Abort() { u.aborted = true }

// TestFiles: what goes up comes down again, from any offset, and only whole.
func TestFiles(t *testing.T) {
	t.Parallel()
	blobs := map[string][]byte{}
	uploads := 0
	f := &fakeEngine{
		upload: func(r engine.UploadRequest) (server.Upload, error) {
			uploads++
			return &memoryUpload{want: r.SHA256, keep: func(d string, b []byte) { blobs["sha256:"+d] = b }}, nil
		},
		open: func(ref string) (engine.File, engine.FileInfo, error) {
			b, ok := blobs[ref]
			if !ok {
				return nil, engine.FileInfo{}, jobs.Errorf(jobs.CodeFileNotFound, "no such file")
			}
			return memory{bytes.NewReader(b)}, engine.FileInfo{Reference: ref, SHA256: strings.TrimPrefix(ref, "sha256:"), Size: int64(len(b)), Transfer: int64(len(b))}, nil
		},
	}
	c := start(t, f)
	dir := t.TempDir()
	content := make([]byte, 1<<20+17)
	_, _ = rand.Read(content)
	local, back := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(local, content, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := c.Upload(t.Context(), local)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Upload(t.Context(), local); err != nil || again.GetReference() != info.GetReference() || uploads != 1 {
		t.Errorf("the second upload: %v, %v; %d uploads", again, err, uploads)
	}
	if _, err := c.Download(t.Context(), info.GetReference(), back); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Upload(t.Context(), empty); err != nil || info.GetSize() != 0 {
		t.Errorf("an empty file: %v, %v", info, err)
	} else if _, err := c.Download(t.Context(), info.GetReference(), back, client.Replace()); err != nil {
		t.Errorf("an empty file: %v", err)
	}

	stream, err := c.Files.DownloadFile(t.Context(), &macexecv1.DownloadFileRequest{Reference: info.GetReference(), Offset: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var tail []byte
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		tail = append(tail, resp.GetChunk()...)
	}
	if !bytes.Equal(tail, content[1<<20:]) {
		t.Errorf("from an offset came %d bytes", len(tail))
	}

	for offset, want := range map[int64]string{-1: "REQUEST_INVALID", 1 << 40: "REQUEST_INVALID"} {
		stream, err := c.Files.DownloadFile(t.Context(), &macexecv1.DownloadFileRequest{Reference: info.GetReference(), Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if e := failure(t, err); e.Code() != want {
			t.Errorf("offset %d: %v", offset, e)
		}
	}
	if _, err := c.Download(t.Context(), "sha256:none", back, client.Replace()); failure(t, err).Code() != "FILE_NOT_FOUND" {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestBadUploads: an upload that is not what it announced leaves nothing.
func TestBadUploads(t *testing.T) {
	t.Parallel()
	begin := func(sha string, size int64) *macexecv1.UploadFileRequest {
		return &macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: &macexecv1.UploadStart{Sha256: sha, Size: &size}}}
	}
	goOn := func(offset int64) *macexecv1.UploadFileRequest {
		return &macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: &macexecv1.UploadStart{
			Sha256: strings.Repeat("0", 64), Size: new(int64(3)), Offset: offset,
		}}}
	}
	large := &macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Chunk{Chunk: make([]byte, 1<<20+1)}}
	piece := &macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Chunk{Chunk: []byte("abc")}}
	cases := map[string]struct {
		send []*macexecv1.UploadFileRequest
		want string
	}{
		"nothing":        {nil, "REQUEST_INVALID"},
		"no start":       {[]*macexecv1.UploadFileRequest{piece}, "REQUEST_INVALID"},
		"two starts":     {[]*macexecv1.UploadFileRequest{begin("", 3), begin("", 3)}, "REQUEST_INVALID"},
		"negative size":  {[]*macexecv1.UploadFileRequest{begin("", -1)}, "REQUEST_INVALID"},
		"no digest":      {[]*macexecv1.UploadFileRequest{begin("XYZ", 3)}, "REQUEST_INVALID"},
		"upper case":     {[]*macexecv1.UploadFileRequest{begin(strings.Repeat("A", 64), 3)}, "REQUEST_INVALID"},
		"behind nothing": {[]*macexecv1.UploadFileRequest{goOn(-1)}, "REQUEST_INVALID"},
		"large chunk":    {[]*macexecv1.UploadFileRequest{begin("", 1<<21), large}, "REQUEST_INVALID"},
		"another digest": {[]*macexecv1.UploadFileRequest{begin(strings.Repeat("0", 64), 3), piece}, "DIGEST_MISMATCH"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := false
			u := &memoryUpload{keep: func(string, []byte) { kept = true }}
			c := start(t, &fakeEngine{upload: func(r engine.UploadRequest) (server.Upload, error) {
				u.want = r.SHA256
				return u, nil
			}})
			stream, err := c.Files.UploadFile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tc.send {
				if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			_, err = stream.CloseAndRecv()
			if e := failure(t, err); e.Code() != tc.want {
				t.Errorf("%v, want %s", e, tc.want)
			}
			if kept {
				t.Error("it was kept")
			}
		})
	}
}
