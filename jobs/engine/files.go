package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// DefaultProject is the project of a call that names none.
const DefaultProject = "default"

// projectOf says which project the arguments speak of.
func projectOf(args any) string {
	if m, ok := args.(map[string]any); ok {
		if id, ok := m["project_id"].(string); ok {
			return id
		}
	}
	return DefaultProject
}

// openProject opens a project's folder. The caller closes it.
func (e *Engine) openProject(ctx context.Context, _ string, name string) (*files.Root, error) {
	projects, err := e.store.Projects(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(projects, func(p jobs.Project) bool { return p.Name == name })
	if i < 0 {
		return nil, jobs.Errorf(jobs.CodeProjectNotFound, "there is no project %q", name).With("project", name)
	}
	return files.OpenRoot(projects[i].Root)
}

// openInput opens what a file argument names: a path in the call's project, an
// uploaded file, or an earlier job's artifact. The caller closes the file.
func (e *Engine) openInput(ctx context.Context, principal string, args any, arg schemas.FileArgument) (*os.File, jobs.InputFile, error) {
	in := jobs.InputFile{Pointer: arg.Pointer, Reference: arg.Value, InPlace: arg.InPlace}
	if strings.HasPrefix(arg.Value, blobPrefix) || strings.HasPrefix(arg.Value, jobPrefix) {
		f, info, err := e.openReference(ctx, Caller{Principal: principal}, arg.Value)
		if err != nil {
			return nil, in, err
		}
		in.Size, in.SHA256, in.MediaType = info.Size, info.SHA256, info.MediaType
		return f, in, nil
	}
	in.Project, in.Path = projectOf(args), arg.Value
	root, err := e.openProject(ctx, principal, in.Project)
	if err != nil {
		return nil, in, err
	}
	defer root.Close()
	f, facts, err := root.Open(in.Path)
	if err != nil {
		return nil, in, err
	}
	in.Size, in.ModTime = facts.Size, facts.ModTime
	return f, in, nil
}

// changedInputs says which of a job's inputs are not any more what the job was
// accepted with, for a repeat of the call.
func (e *Engine) changedInputs(ctx context.Context, job *jobs.Job) []string {
	var list []string
	for _, in := range job.Inputs {
		if in.Project == "" {
			continue
		}
		root, err := e.openProject(ctx, job.Principal, in.Project)
		if err != nil {
			list = append(list, fmt.Sprintf("the project of %s is not there any more", in.Pointer))
			continue
		}
		facts, err := root.Stat(in.Path)
		_ = root.Close()
		switch {
		case isNotExist(err):
			list = append(list, fmt.Sprintf("the file that %s names is not there any more; this is the result for what it was", in.Pointer))
		case err != nil || !facts.ModTime.Equal(in.ModTime):
			list = append(list, fmt.Sprintf("the file that %s names has changed since; this is the result for what it was", in.Pointer))
		}
	}
	return list
}

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
		f, _, err := e.blobs.Open(digest)
		if err != nil {
			return nil, FileInfo{}, jobs.Errorf(jobs.CodeFileNotFound, "the uploaded file %s is gone from the disk: %w", ref, err).With("reference", ref)
		}
		return f, FileInfo{Reference: ref, Name: digest, SHA256: digest, Size: blob.Size, MediaType: blob.MediaType}, nil
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
	info := FileInfo{Reference: ref, Name: a.Name, SHA256: a.SHA256, Size: a.Size, MediaType: a.MediaType}
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
		f, _, err := files.OpenKept(filepath.Join(e.exec.JobDir(job.ID), a.Kept))
		return f, err
	}
	root, err := e.openProject(ctx, job.Principal, a.Project)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, _, err := root.Open(a.Path)
	if err != nil {
		return nil, err
	}
	digest, _, err := files.Digest(ctx, f)
	if err == nil && digest != a.SHA256 {
		err = jobs.Errorf(jobs.CodeArtifactChanged, "%s in project %s is no longer what job %s made", a.Path, a.Project, job.ID).WithJob(job.ID)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
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
	f, info, err := e.openReference(ctx, c, ref)
	if err != nil {
		return FileInfo{}, err
	}
	return info, f.Close()
}

// OpenFile opens an uploaded file or an artifact for reading.
func (e *Engine) OpenFile(ctx context.Context, c Caller, ref string) (File, FileInfo, error) {
	f, info, err := e.openReference(ctx, c, ref)
	if err != nil {
		return nil, info, err
	}
	return f, info, nil
}

// Upload is a file on its way in. Nothing of it is kept unless Commit succeeds.
type Upload struct {
	e   *Engine
	c   Caller
	req UploadRequest
	w   *files.BlobWriter
}

// Upload begins to take a file in.
func (e *Engine) Upload(ctx context.Context, c Caller, req UploadRequest) (*Upload, error) {
	if req.Size > e.limits.UploadBytes {
		return nil, jobs.Errorf(jobs.CodeFileTooLarge, "the file has %d bytes; this host takes %d", req.Size, e.limits.UploadBytes)
	}
	w, err := e.blobs.Create(ctx, e.limits.UploadBytes)
	if err != nil {
		return nil, uploadFault("begun", err)
	}
	return &Upload{e: e, c: c, req: req, w: w}, nil
}

// Write takes the next bytes.
func (u *Upload) Write(p []byte) (int, error) {
	n, err := u.w.Write(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, files.ErrTooLarge):
		return n, jobs.Errorf(jobs.CodeFileTooLarge, "the file has more than the %d bytes that this host takes", u.e.limits.UploadBytes)
	default:
		return n, uploadFault("written", err)
	}
}

// Commit checks the bytes against what was announced, makes them durable, and
// records them for the caller.
func (u *Upload) Commit(ctx context.Context) (jobs.Blob, error) {
	kept, err := u.w.Commit(ctx, u.req.SHA256)
	if errors.Is(err, files.ErrDigest) {
		return jobs.Blob{}, jobs.Errorf(jobs.CodeDigestMismatch, "the bytes received do not have the digest %s that was announced", u.req.SHA256)
	}
	if err != nil {
		return jobs.Blob{}, uploadFault("stored", err)
	}
	blob := jobs.Blob{SHA256: kept.SHA256, Size: kept.Size, MediaType: kept.MediaType, Principals: []string{u.c.Principal}, StoredAt: u.e.now()}
	return blob, u.e.store.PutBlob(context.WithoutCancel(ctx), blob)
}

// uploadFault tells a full disk from a caller that went away and from other faults.
func uploadFault(what string, err error) error {
	switch {
	case startReason(err) == jobs.EndDiskFull:
		return jobs.Errorf(jobs.CodeDiskFull, "there is no room for the upload: %w", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return jobs.Errorf(jobs.CodeCallerGone, "the upload was cut short: %w", err)
	default:
		return jobs.Errorf(jobs.CodeInternal, "the upload cannot be %s: %w", what, err)
	}
}

// Abort gives the upload up; after Commit it does nothing.
func (u *Upload) Abort() { u.w.Abort() }

// Projects lists the projects.
func (e *Engine) Projects(ctx context.Context, _ Caller) ([]jobs.Project, error) {
	return e.store.Projects(ctx)
}

// AddProject names a folder tree that calls may read or write.
func (e *Engine) AddProject(ctx context.Context, c Caller, p jobs.Project) (jobs.Project, error) {
	if !projectName(p.Name) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "a project's name begins with a letter or digit and has at most 64 letters, digits, '.', '_' and '-'; %q does not", p.Name)
	}
	p.Root = filepath.Clean(p.Root)
	root, err := files.OpenRoot(p.Root)
	if err != nil {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "%q cannot be a project: %s", p.Root, plainMessage(err))
	}
	defer root.Close()
	if overlaps(p.Root, e.facts.StatePath) && !within(p.Root, filepath.Join(e.facts.StatePath, ProjectsFolder)) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "%q overlaps macexec's own state folder, which no call may read or write; choose another folder", p.Root)
	}
	return p, e.store.PutProject(context.WithoutCancel(ctx), p, c.Principal)
}

// ProjectsFolder is where, in the state folder, macexec makes projects of its own.
const ProjectsFolder = "projects"

// overlaps reports whether one folder lies in the other, whatever symbolic links lead
// there.
func overlaps(a, b string) bool { return within(a, b) || within(b, a) }

func within(inner, outer string) bool {
	rel, err := filepath.Rel(resolved(outer), resolved(inner))
	return err == nil && filepath.IsLocal(rel)
}

func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// RemoveProject forgets a project; its files stay. It is refused while a job that
// is not settled may still write there.
func (e *Engine) RemoveProject(ctx context.Context, c Caller, name string) error {
	open, _, err := e.store.Open(ctx)
	if err != nil {
		return err
	}
	for _, j := range open {
		var args any
		if json.Unmarshal(j.Call.Arguments, &args) != nil || projectOf(args) != name {
			continue
		}
		if j.Principal != c.Principal {
			return jobs.Errorf(jobs.CodeProjectInUse, "a job that is not settled uses project %s", name)
		}
		return jobs.Errorf(jobs.CodeProjectInUse, "job %s is %s and uses project %s; wait for it or cancel it", j.ID, j.State, name).WithJob(j.ID)
	}
	return e.store.DeleteProject(context.WithoutCancel(ctx), name, c.Principal)
}

// projectName reports whether s is a name for a project: a letter or digit, then at
// most 63 letters, digits, dots, underscores and dashes (as in config.schema.json).
func projectName(s string) bool {
	for i, r := range s {
		alphanumeric := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alphanumeric && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// plainMessage is an error's text for callers: of an *Error its sentence alone.
func plainMessage(err error) string {
	if e, ok := errors.AsType[*jobs.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
