package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/proto/document"
)

// What is too large for a message can be read as a file. An artifact cannot have such a
// name.
const (
	wholeResult = "@result"
	wholeJob    = "@job"
)

// open opens what a reference names: an upload, an artifact, or the result or the whole
// record of a job, which GetJob leaves fields out of when it is too large.
func (s *fileService) open(ctx context.Context, reference string) (engine.File, engine.FileInfo, error) {
	id, part, ok := partOf(reference)
	if !ok {
		return s.server.engine.OpenFile(ctx, caller(ctx), reference)
	}
	text, err := s.part(ctx, id, part)
	return wholeText{bytes.NewReader(text)}, describe(reference, part, text), err
}

func (s *fileService) stat(ctx context.Context, reference string) (engine.FileInfo, error) {
	id, part, ok := partOf(reference)
	if !ok {
		return s.server.engine.StatFile(ctx, caller(ctx), reference)
	}
	text, err := s.part(ctx, id, part)
	return describe(reference, part, text), err
}

// partOf says whether a reference names a part of a job's record, and which.
func partOf(reference string) (id, part string, ok bool) {
	rest, isJob := strings.CutPrefix(reference, "job:")
	id, part, _ = strings.Cut(rest, "/")
	return id, part, isJob && (part == wholeResult || part == wholeJob)
}

func (s *fileService) part(ctx context.Context, id, part string) ([]byte, error) {
	job, err := s.server.engine.Job(ctx, caller(ctx), id)
	switch {
	case err != nil:
		return nil, err
	case part == wholeResult && len(job.Result) == 0:
		return nil, jobs.Errorf(jobs.CodeFileNotFound, "job %s has no result", id).WithJob(id)
	case part == wholeResult:
		return job.Result, nil
	}
	whole := fullJob(job)
	repair(whole.ProtoReflect())
	text, err := document.Marshal(whole)
	if err != nil {
		return nil, jobs.Errorf(jobs.CodeInternal, "write job %s as a document: %w", id, err)
	}
	return text, nil
}

func describe(reference, part string, text []byte) engine.FileInfo {
	sum := sha256.Sum256(text)
	size := int64(len(text))
	return engine.FileInfo{
		Reference: reference, Name: strings.TrimPrefix(part, "@") + ".json", SHA256: hex.EncodeToString(sum[:]),
		Size: size, Transfer: size, MediaType: "application/json",
	}
}

// wholeText is a text that is read as a file.
type wholeText struct{ *bytes.Reader }

func (wholeText) Close() error { return nil }
