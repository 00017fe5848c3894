package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
		f, info, err := e.openResult(ctx, Caller{Principal: principal}, arg.Value)
		if err != nil {
			return nil, in, err
		}
		in.Size, in.SHA256, in.MediaType = info.Size, info.SHA256, info.MediaType
		in.Folder, in.Files = info.Folder, info.files
		return f, in, nil
	}
	in.Project, in.Path = projectOf(args), arg.Value
	root, err := e.openProject(ctx, principal, in.Project)
	if err != nil {
		return nil, in, err
	}
	defer root.Close()
	if arg.TakesFolder() {
		f, facts, err := root.OpenFolder(in.Path)
		if err == nil {
			in.Folder, in.ModTime, in.MediaType = true, facts.ModTime, files.MediaTypeFolder
			return f, in, nil
		}
		if !errors.Is(err, files.ErrNotFolder) {
			return nil, in, err
		}
	}
	f, facts, err := root.Open(in.Path)
	if err != nil {
		return nil, in, err
	}
	in.Size, in.ModTime = facts.Size, facts.ModTime
	return f, in, nil
}

func factsAt(root *files.Root, in jobs.InputFile) (files.Facts, error) {
	if !in.Folder {
		return root.Stat(in.Path)
	}
	f, facts, err := root.OpenFolder(in.Path)
	if err != nil {
		return facts, err
	}
	return facts, f.Close()
}

// digestInput reads what openInput opened, and says so in the record.
func digestInput(ctx context.Context, f *os.File, arg schemas.FileArgument, in *jobs.InputFile) (err error) {
	if !in.Folder {
		in.SHA256, in.Size, err = files.Digest(ctx, f)
		return err
	}
	tree, err := files.DigestFolder(ctx, f, treeRules(arg.Limits))
	in.SHA256, in.Size, in.Files = tree.Digest(), tree.Size, tree.Files
	return err
}

// digestAt digests what lies in a project: a file, or a folder.
func digestAt(ctx context.Context, root *files.Root, p string, folder bool) (string, error) {
	if folder {
		f, _, err := root.OpenFolder(p)
		if err != nil {
			return "", err
		}
		defer f.Close()
		tree, err := files.DigestFolder(ctx, f, files.TreeRules{})
		return tree.Digest(), err
	}
	f, _, err := root.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest, _, err := files.Digest(ctx, f)
	return digest, err
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
		facts, err := factsAt(root, in)
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

// Projects lists the projects.
func (e *Engine) Projects(ctx context.Context, _ Caller) ([]jobs.Project, error) {
	return e.store.Projects(ctx)
}

// AddProject names a folder tree that calls may read or write.
func (e *Engine) AddProject(ctx context.Context, c Caller, p jobs.Project) (jobs.Project, error) {
	p, err := e.soundProject(p)
	if err != nil {
		return p, err
	}
	return p, e.store.PutProject(context.WithoutCancel(ctx), p, c.Principal)
}

// ReplaceProjects gives each project its folder, in place of one that its name may
// have; all of them or, if one cannot have it or a job that is not settled uses one that
// would change, none.
func (e *Engine) ReplaceProjects(ctx context.Context, c Caller, list []jobs.Project) error {
	sound := make([]jobs.Project, 0, len(list))
	for _, p := range list {
		p, err := e.soundProject(p)
		if err != nil {
			return err
		}
		sound = append(sound, p)
	}
	return e.store.ReplaceProjects(context.WithoutCancel(ctx), sound, c.Principal, func(j *jobs.Job, changed []jobs.Project) error {
		used := projectUsedBy(j)
		if !slices.ContainsFunc(changed, func(p jobs.Project) bool { return p.Name == used }) {
			return nil
		}
		return inUse(c, j, used)
	})
}

// soundProject looks at a project without regard to those that there are.
func (e *Engine) soundProject(p jobs.Project) (jobs.Project, error) {
	if !projectName(p.Name) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "a project's name begins with a letter or digit and has at most 64 letters, digits, '.', '_' and '-'; %q does not", p.Name)
	}
	if !filepath.IsAbs(p.Root) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "a project needs an absolute folder, and %q is none", p.Root)
	}
	// The folder itself, so that nobody who can change a link moves the project.
	folder, err := filepath.EvalSymlinks(p.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "there is no folder %q on this host, so it cannot be a project", filepath.Clean(p.Root))
	}
	var root *files.Root
	if err == nil {
		p.Root = folder
		root, err = files.OpenRoot(p.Root)
	}
	if err != nil {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "this cannot be a project: %s", plainMessage(err))
	}
	defer root.Close()
	if overlaps(p.Root, e.facts.StatePath) && !within(p.Root, filepath.Join(e.facts.StatePath, ProjectsFolder)) {
		return p, jobs.Errorf(jobs.CodeRequestInvalid, "%q overlaps macexec's own state folder, which no call may read or write; choose another folder", p.Root)
	}
	return p, nil
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
	if err := e.notInUse(ctx, c, name); err != nil {
		return err
	}
	return e.store.DeleteProject(context.WithoutCancel(ctx), name, c.Principal)
}

// notInUse holds that no job that is not settled uses a project.
func (e *Engine) notInUse(ctx context.Context, c Caller, name string) error {
	open, _, err := e.store.Open(ctx)
	if err != nil {
		return err
	}
	for _, j := range open {
		if projectUsedBy(j) == name {
			return inUse(c, j, name)
		}
	}
	return nil
}

// projectUsedBy is the project of a job's call; empty if its arguments cannot be read.
func projectUsedBy(j *jobs.Job) string {
	var args any
	if json.Unmarshal(j.Call.Arguments, &args) != nil {
		return ""
	}
	return projectOf(args)
}

func inUse(c Caller, j *jobs.Job, project string) error {
	if j.Principal != c.Principal {
		return jobs.Errorf(jobs.CodeProjectInUse, "a job that is not settled uses project %s", project)
	}
	return jobs.Errorf(jobs.CodeProjectInUse, "job %s is %s and uses project %s; wait for it or cancel it", j.ID, j.State, project).WithJob(j.ID)
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
