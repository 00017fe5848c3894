package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/policy"
	"github.com/macexec/macexec/schemas"
)

// stage takes the inputs in as copies that nobody else can change, and compares
// what was approved with what would run, on those copies.
func (a *attempt) stage(ctx context.Context) error {
	dir := a.e.exec.AttemptDir(a.job.ID, a.n)
	inputs := slices.Clone(a.job.Inputs)
	for _, arg := range a.tool.Files(a.vars.Args) {
		if arg.Role != schemas.RoleInput {
			continue
		}
		i := slices.IndexFunc(inputs, func(in jobs.InputFile) bool { return in.Pointer == arg.Pointer })
		if i < 0 {
			return jobs.Errorf(jobs.CodeInternal, "input %s was not looked at when the call was accepted", arg.Pointer)
		}
		facts, err := a.stageInput(ctx, dir.In(), arg, &inputs[i])
		if err != nil {
			return notTakenIn(arg.Pointer, err)
		}
		fault.Point("stage.taken")
		a.vars.Inputs[arg.Name] = facts
	}
	changed := *a.job
	changed.Inputs = inputs
	a.job = &changed
	return a.compareWithApproval(ctx)
}

// notTakenIn says why an input could not be staged: for what it is, or because this
// host could not copy it just now.
func notTakenIn(pointer string, err error) *unfit {
	reason := jobs.EndInputInvalid
	if _, itsOwn := fileFinding(pointer, err); !itsOwn {
		reason = startReason(err)
	}
	return &unfit{reason, fmt.Sprintf("the input %s cannot be taken in: %s", pointer, plainMessage(err))}
}

// load reads the job's record back into what the manifest's expressions see. The
// manifest is the one that the call was accepted with, and after a start the way of
// running is the one that was started.
func (a *attempt) load() error {
	e, job := a.e, a.job
	tool, err := e.toolOf(job.Tool)
	if err != nil {
		return &unfit{jobs.EndStartFailed, plainMessage(err)}
	}
	if a.sealed {
		return &unfit{jobs.EndStartFailed, "the secret arguments cannot be opened with this host's key"}
	}
	args, findings := schemas.Parse(job.Call.Arguments, schemas.DefaultLimits())
	if len(findings) > 0 {
		return &unfit{jobs.EndStartFailed, "the stored arguments do not parse: " + findings[0].Message}
	}
	a.tool = tool
	a.vars = schemas.Vars{
		Args: args, Secrets: byArgument(a.secrets), Work: e.exec.AttemptDir(job.ID, a.n).Work(),
		Call:   schemas.CallVars{Purpose: string(job.Call.Purpose), Replace: job.Call.Options.Replace, Tool: tool.Tool, Version: tool.Version},
		Inputs: map[string]schemas.File{}, Outputs: map[string]string{}, Steps: map[string]any{},
		Artifacts: map[string]schemas.Artifact{}, Programs: map[string]schemas.Program{},
	}
	if !runs(tool) {
		return nil
	}
	if last, ok := job.LastAttempt(); ok && last.Intent != nil {
		a.variant, _ = tool.VariantAt(last.Intent.Variant)
	} else {
		var missing []string
		if a.variant, missing = e.chooseVariant(tool); a.variant == nil {
			return &unfit{jobs.EndStartFailed, fmt.Sprintf("%s needs %v, which this host does not have any more", tool.Tool, missing)}
		}
	}
	if a.variant == nil {
		return &unfit{jobs.EndStartFailed, "the manifest of " + tool.Tool + " has lost the way of running that was chosen"}
	}
	return nil
}

// toolOf returns the tool that a job was accepted with, also after an upgrade.
func (e *Engine) toolOf(ref jobs.ToolRef) (*schemas.Tool, error) {
	if tool, ok := e.registry.Tool(ref.Name, ref.Version); ok && tool.Digest == ref.ManifestDigest {
		return tool, nil
	}
	e.mu.Lock()
	tool := e.earlier[ref.ManifestDigest]
	e.mu.Unlock()
	if tool != nil {
		return tool, nil
	}
	text, err := e.store.Manifest(context.Background(), ref.ManifestDigest)
	if err != nil {
		return nil, err
	}
	if tool, err = schemas.Compile(text, "kept"); err != nil {
		return nil, jobs.Errorf(jobs.CodeInternal, "the manifest that %s was accepted with: %w", ref.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.earlier[ref.ManifestDigest] = tool
	return tool, nil
}

// stageInput copies one input into the attempt's folder and says what the copy is.
func (a *attempt) stageInput(ctx context.Context, to string, arg schemas.FileArgument, in *jobs.InputFile) (schemas.File, error) {
	if err := fault.Err("stage.open"); err != nil {
		return schemas.File{}, err
	}
	f, now, err := a.e.openInput(ctx, a.job.Principal, a.vars.Args, arg)
	if err != nil {
		return schemas.File{}, err
	}
	defer f.Close()
	fault.Point("stage.opened")
	name := nameOf(*in, arg)
	if readInPlace(*in) {
		return a.readInPlace(ctx, f, now, name, in)
	}
	if !runs(a.tool) {
		// Only looked at: what moves is decided when it moves.
		err = digestInput(ctx, f, arg, in)
		return schemas.File{Name: name, Size: in.Size, SHA256: in.SHA256, MediaType: in.MediaType, Files: in.Files}, err
	}
	var staged files.Staged
	if now.Folder {
		staged, err = files.StageFolder(ctx, f, to, arg.Name, treeRules(arg.Limits))
	} else {
		staged, err = files.Stage(ctx, f, to, arg.Name)
	}
	if err != nil {
		return schemas.File{}, err
	}
	if recorded := now.SHA256; recorded != "" && recorded != staged.SHA256 {
		return schemas.File{}, jobs.Errorf(jobs.CodeArtifactChanged, "%s is no longer what it was recorded to be: its bytes have changed on the disk", in.Reference)
	}
	in.SHA256, in.Size, in.MediaType = staged.SHA256, staged.Size, staged.MediaType
	in.Folder, in.Files = now.Folder, staged.Files
	return schemas.File{
		Path: staged.Path, Name: name, Size: staged.Size, SHA256: staged.SHA256,
		MediaType: staged.MediaType, Kind: string(staged.Kind), Files: staged.Files,
	}, nil
}

// stagedInput says what an input was that an earlier engine staged.
func (a *attempt) stagedInput(ctx context.Context, arg schemas.FileArgument, in jobs.InputFile) (schemas.File, error) {
	file := schemas.File{Name: nameOf(in, arg), Size: in.Size, SHA256: in.SHA256, MediaType: in.MediaType, Files: in.Files}
	if err := fault.Err("stage.again"); err != nil {
		return file, err
	}
	if in.Folder {
		file.Path, file.Kind = filepath.Join(a.e.exec.AttemptDir(a.job.ID, a.n).In(), arg.Name), string(files.KindFolder)
		f, err := files.OpenKeptFolder(file.Path)
		if err != nil {
			return file, err
		}
		return file, f.Close()
	}
	var f *os.File
	var err error
	if readInPlace(in) {
		if f, _, err = a.e.openInput(ctx, a.job.Principal, a.vars.Args, arg); err == nil {
			file.Path = f.Name()
			a.inPlace = append(a.inPlace, file.Path)
		}
	} else {
		file.Path = filepath.Join(a.e.exec.AttemptDir(a.job.ID, a.n).In(), arg.Name)
		f, _, err = files.OpenKept(file.Path)
	}
	if err != nil {
		return file, err
	}
	defer f.Close()
	_, kind, err := files.SniffFile(f)
	file.Kind = string(kind)
	return file, err
}

// nameOf is what people know an input by.
func nameOf(in jobs.InputFile, arg schemas.FileArgument) string {
	if in.Path == "" {
		return arg.Name
	}
	return filepath.Base(in.Path)
}

// readInPlace reports whether an input is too large to be copied and is read where
// it lies in its project. Files that nobody may change are always taken in.
func readInPlace(in jobs.InputFile) bool { return in.InPlace && in.Project != "" }

// readInPlace lets the tool read a project's own file. That it did not change
// meanwhile is checked at the end (see unchangedInPlace).
func (a *attempt) readInPlace(ctx context.Context, f *os.File, now jobs.InputFile, name string, in *jobs.InputFile) (schemas.File, error) {
	path, err := filepath.EvalSymlinks(f.Name())
	if err != nil {
		return schemas.File{}, err
	}
	mediaType, kind, err := files.SniffFile(f)
	if err != nil {
		return schemas.File{}, err
	}
	in.SHA256, in.Size, err = files.Digest(ctx, f)
	in.MediaType, in.ModTime = mediaType, now.ModTime
	a.inPlace = append(a.inPlace, path)
	return schemas.File{Path: path, Name: name, Size: in.Size, SHA256: in.SHA256, MediaType: mediaType, Kind: string(kind)}, err
}

// unchangedInPlace says which input that was read in place is not what it was when
// the tool started, or "".
func (a *attempt) unchangedInPlace(ctx context.Context) string {
	for _, in := range a.job.Inputs {
		if !readInPlace(in) {
			continue
		}
		root, err := a.e.openProject(ctx, a.job.Principal, in.Project)
		if err != nil {
			return plainMessage(err)
		}
		facts, err := root.Stat(in.Path)
		_ = root.Close()
		if err != nil || facts.Size != in.Size || !facts.ModTime.Equal(in.ModTime) {
			return "the file that " + in.Pointer + " names was changed while the tool read it in place"
		}
	}
	return ""
}

// compareWithApproval voids an approved job if what would run is not what was
// approved, or if the policy of this moment is stricter (promise G8).
func (a *attempt) compareWithApproval(ctx context.Context) error {
	if a.job.Approval == nil {
		return nil
	}
	publishes, refused := a.publishes(ctx)
	if refused != nil {
		return a.void(refused.why)
	}
	now := jobs.Binding{
		Tool: a.job.Tool.Name, Version: a.job.Tool.Version, ManifestDigest: a.tool.Digest,
		Fingerprint: a.job.Fingerprint, Inputs: map[string]string{}, Requester: a.job.Principal,
	}
	for _, in := range a.job.Inputs {
		now.Inputs[in.Pointer] = in.SHA256
	}
	for _, step := range publishes {
		if step.OldSHA256 != "" {
			now.Inputs[string(step.Verb)+":"+step.Path] = step.OldSHA256
		}
	}
	now.Programs = a.job.Approval.Binding.Programs // compared when they are chosen for the start
	if difference := bindingDifference(a.job.Approval.Binding, now); difference != "" {
		return a.void(difference)
	}
	// The policy may have another version by now; only a stricter answer matters.
	decision := a.e.decideNow(a.job.Principal, a.job.Call.Purpose, a.job.Call.Context.VisibleTools, a.job.Tool, publishes)
	if policy.Stricter(policy.RequireApproval, policy.Effect(decision.Effect)) {
		return a.void("the policy now denies this call: " + decision.Reason)
	}
	return nil
}

// publishes works out the changes to projects as they stand now, or says why they
// cannot be made.
func (a *attempt) publishes(ctx context.Context) ([]jobs.PublishStep, *unfit) {
	j := &judgement{tool: a.tool, args: a.vars.Args}
	findings, err := a.e.lookAtPublishes(ctx, a.job.Principal, Request{Options: a.job.Call.Options}, j)
	switch {
	case err != nil:
		return nil, &unfit{jobs.EndPublishFailed, plainMessage(err)}
	case len(findings) == 0:
		return j.publishes, nil
	case findings[0].Keyword == keywordTaken:
		return nil, &unfit{jobs.EndDestinationTaken, findings[0].Message}
	default:
		return nil, &unfit{jobs.EndPublishFailed, findings[0].Message}
	}
}
