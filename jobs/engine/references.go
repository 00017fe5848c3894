package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// The prefixes of references to files that are not in a project.
const (
	blobPrefix = "sha256:"
	jobPrefix  = "job:"
)

// openReference opens an uploaded file or an artifact that the caller may use. A
// digest alone gives no right: the blob's own principals are looked at.
func (e *Engine) openReference(ctx context.Context, c Caller, ref string) (*os.File, FileInfo, error) {
	if digest, ok := strings.CutPrefix(ref, blobPrefix); ok {
		blob, err := e.store.GetBlob(ctx, digest)
		if err != nil || !slices.Contains(blob.Principals, c.Principal) {
			if err != nil && jobs.CodeOf(err) != jobs.CodeFileNotFound {
				return nil, FileInfo{}, err
			}
			return nil, FileInfo{}, jobs.Errorf(jobs.CodeFileNotFound, "no file %s has been uploaded", ref).With("reference", ref)
		}
		f, facts, err := e.blobs.Open(digest)
		if err == nil && facts.Size != blob.Size {
			err = errors.Join(fmt.Errorf("%w: it has %d bytes instead of %d", files.ErrChanged, facts.Size, blob.Size), f.Close())
		}
		if err != nil {
			return nil, FileInfo{}, jobs.Errorf(jobs.CodeFileNotFound, "the uploaded file %s is gone from the disk: %w", ref, err).With("reference", ref)
		}
		return f, FileInfo{Reference: ref, Name: digest, SHA256: digest, Size: blob.Size, MediaType: blob.MediaType, Transfer: blob.Size}, nil
	}
	if rest, ok := strings.CutPrefix(ref, jobPrefix); ok {
		id, name, ok := strings.Cut(rest, "/")
		if !ok {
			return nil, FileInfo{}, jobs.Errorf(jobs.CodeRequestInvalid, "%q is not job:<id>/<artifact>", ref)
		}
		return e.openArtifact(ctx, c, id, name)
	}
	return nil, FileInfo{}, jobs.Errorf(jobs.CodeRequestInvalid, "%q is neither sha256:<hex> nor job:<id>/<artifact>", ref)
}

// openResult is openReference for an argument: what a job made can be read by another
// only once that job is completed.
func (e *Engine) openResult(ctx context.Context, c Caller, ref string) (*os.File, FileInfo, error) {
	if rest, ok := strings.CutPrefix(ref, jobPrefix); ok {
		id, _, _ := strings.Cut(rest, "/")
		job, err := e.visible(ctx, c, id)
		if err != nil {
			return nil, FileInfo{}, err
		}
		if job.State != jobs.StateCompleted {
			return nil, FileInfo{}, jobs.Errorf(jobs.CodeStateConflict, "%s cannot be used: job %s is %s, not completed", ref, id, job.State).WithJob(id)
		}
	}
	return e.openReference(ctx, c, ref)
}

func (e *Engine) openArtifact(ctx context.Context, c Caller, id, name string) (*os.File, FileInfo, error) {
	ref := jobPrefix + id + "/" + name
	job, err := e.visible(ctx, c, id)
	if err != nil {
		return nil, FileInfo{}, err
	}
	i := slices.IndexFunc(job.Artifacts, func(a jobs.Artifact) bool { return a.Name == name })
	if i < 0 {
		return nil, FileInfo{}, jobs.Errorf(jobs.CodeFileNotFound, "job %s has no artifact %q", id, name).WithJob(id)
	}
	a := job.Artifacts[i]
	info := FileInfo{
		Reference: ref, Name: path.Base(a.Name), SHA256: a.SHA256, Size: a.Size, MediaType: a.MediaType, Transfer: a.Size,
		Folder: a.Folder, files: a.Files,
	}
	f, err := e.openArtifactFile(ctx, job, a)
	if err != nil {
		if isNotExist(err) {
			return nil, info, jobs.Errorf(jobs.CodeArtifactGone, "the artifact %s is not there any more", ref).WithJob(id)
		}
		return nil, info, err
	}
	return f, info, nil
}

// openArtifactFile opens an artifact and, when it lies in a project where others
// may write, checks that it is still what the job made.
func (e *Engine) openArtifactFile(ctx context.Context, job *jobs.Job, a jobs.Artifact) (*os.File, error) {
	if a.Kept != "" {
		kept := filepath.Join(e.exec.JobDir(job.ID), a.Kept)
		if a.Folder {
			return files.OpenKeptFolder(kept)
		}
		f, _, err := files.OpenKept(kept)
		return f, err
	}
	root, err := e.openProject(ctx, job.Principal, a.Project)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if a.Folder {
		return openSameFolder(ctx, root, job, a)
	}
	f, _, err := root.Open(a.Path)
	if err != nil {
		return nil, err
	}
	if err := e.unchanged(ctx, f, job, a); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openSameFolder opens a published folder that is still what the job made.
func openSameFolder(ctx context.Context, root *files.Root, job *jobs.Job, a jobs.Artifact) (*os.File, error) {
	f, _, err := root.OpenFolder(a.Path)
	if err != nil {
		return nil, err
	}
	tree, err := files.DigestFolder(ctx, f, files.TreeRules{})
	switch {
	case errors.Is(err, files.ErrTree), errors.Is(err, files.ErrTooLarge), errors.Is(err, files.ErrChanged), err == nil && tree.Digest() != a.SHA256:
		err = jobs.Errorf(jobs.CodeArtifactChanged, "the folder %s in project %s is no longer what job %s made", a.Path, a.Project, job.ID).WithJob(job.ID)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hostOf cuts the host out of a job id; "" if it is no job id.
func hostOf(id string) string {
	at, host, _ := strings.Cut(id, "-")
	if len(at) != ulid.EncodedSize || len(host) != 8 || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return ""
	}
	return host
}

// StatFile describes an uploaded file or an artifact.
func (e *Engine) StatFile(ctx context.Context, c Caller, ref string) (FileInfo, error) {
	f, info, err := e.OpenFile(ctx, c, ref)
	if err != nil {
		return FileInfo{}, err
	}
	return info, f.Close()
}

// OpenFile opens an uploaded file or an artifact for reading; a folder as a tar.
func (e *Engine) OpenFile(ctx context.Context, c Caller, ref string) (File, FileInfo, error) {
	f, info, err := e.openReference(ctx, c, ref)
	if err != nil {
		return nil, info, err
	}
	if !info.Folder {
		return f, info, nil
	}
	t, err := files.OpenTar(ctx, f)
	if err != nil {
		return nil, info, err
	}
	info.Transfer = t.Size()
	return t, info, nil
}
