package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/schemas"
)

// verify checks what a tool that exited 0 has made, keeps it, and works out the
// result. Exit code 0 alone proves nothing.
func (a *attempt) verify(found executor.Found) error {
	ctx := a.e.stopped
	if found.Exit.NoRoom && a.mayBeCutShort() {
		return a.endBy(found, jobs.EndedDiskFull, "it exited with 0, but then its disk had no room left, so what it made cannot be told to be whole")
	}
	if a.tidied && a.job.Tool.Effects.LeavesNothing() {
		return a.tidiedBefore(found)
	}
	bad := func(why string) error {
		switch {
		case a.e.stopped.Err() != nil:
			return errLeft
		case a.tidied:
			return a.tidiedBefore(found) // what is missing was there
		}
		return a.endBy(found, jobs.EndedBadOutput, why)
	}
	if a.variant == nil {
		var err error
		patiently(ctx, func() (done bool) {
			err = a.reload(ctx)
			return !errors.Is(err, syscall.EIO) // which says nothing of what the tool made
		})
		if err != nil {
			return bad("what it made cannot be verified: " + plainMessage(err))
		}
	}
	if len(a.tool.Artifacts) > 0 {
		if err := a.update("the outputs are being verified", func(j *jobs.Job) error {
			keepStart(j, found)
			return j.Enter(jobs.PhaseVerifying)
		}); err != nil {
			return err
		}
	}
	a.lap()
	if why := a.unchangedInPlace(ctx); why != "" {
		return a.endBy(found, jobs.EndedInputChanged, why)
	}
	command, err := a.variant.Command(ctx, a.vars)
	if err != nil {
		return bad("the command cannot be worked out again: " + err.Error())
	}
	if command.Capture {
		text, err := a.e.exec.Stdout(a.job.ID, a.n)
		if err != nil {
			return bad("what the tool printed cannot be read: " + err.Error())
		}
		if a.vars.Tool, err = command.Parse(ctx, text); err != nil {
			return bad("what the tool printed is not what its manifest says: " + err.Error())
		}
	}
	artifacts, why, err := a.keepArtifacts(ctx)
	switch {
	case startReason(err) == jobs.EndDiskFull && a.e.stopped.Err() == nil:
		return a.endBy(found, jobs.EndedDiskFull, why)
	case why != "":
		return bad(why)
	}
	steps, err := a.variant.After(ctx, a.vars)
	if err != nil {
		return bad("a step after the command cannot be worked out: " + err.Error())
	}
	if err := a.lookAll(ctx, steps); err != nil {
		return bad("the output cannot be read " + plainMessage(err))
	}
	if findings := a.variant.Verify(ctx, a.vars); len(findings) > 0 {
		return bad(sentence(findings[0]))
	}
	result, err := a.tool.Result(ctx, a.vars)
	if err != nil {
		return bad("the result cannot be worked out: " + err.Error())
	}
	if findings := a.tool.ValidateResult(result); len(findings) > 0 {
		return bad("the result does not fit the tool's output schema: " + findings[0].Message)
	}
	fault.Point("engine.verified")
	took := a.lap()
	made := product{artifacts: artifacts, proof: exitEvidence(a.n, found.Exit), ran: true}
	made.keep = func(j *jobs.Job) {
		keepStart(j, found)
		a.keepExit(j, found)
		j.Artifacts, j.Result = artifacts, result
		j.Usage.BytesOut = 0
		for _, art := range artifacts {
			j.Usage.BytesOut += art.Size
		}
		j.Usage.Publishing += took
		j.Evidence = append(j.Evidence, a.outputsEvidence(artifacts)...)
	}
	return a.publish(made)
}

// reload makes an attempt that an earlier engine ran known again: its manifest,
// its staged inputs and what the steps before the command said of them.
func (a *attempt) reload(ctx context.Context) error {
	if err := a.load(); err != nil {
		return err
	}
	if a.variant == nil {
		return nil
	}
	for _, arg := range a.tool.Files(a.vars.Args) {
		i := slices.IndexFunc(a.job.Inputs, func(in jobs.InputFile) bool { return in.Pointer == arg.Pointer })
		if arg.Role != schemas.RoleInput || i < 0 {
			continue
		}
		file, err := a.stagedInput(ctx, arg, a.job.Inputs[i])
		if err != nil {
			return err
		}
		a.vars.Inputs[arg.Name] = file
	}
	if last, ok := a.job.LastAttempt(); ok && last.Intent != nil {
		for _, p := range last.Intent.Programs {
			a.vars.Programs[p.Name] = schemas.Program{Path: p.Path, Version: p.Version}
		}
	}
	return a.lookBefore(ctx)
}

// keepArtifacts takes the tool's outputs out of its reach, or says in words why that cannot
// be done, and by which error.
func (a *attempt) keepArtifacts(ctx context.Context) ([]jobs.Artifact, string, error) {
	var list []jobs.Artifact
	for _, spec := range a.tool.Artifacts {
		var made []jobs.Artifact
		var seen schemas.Artifact
		var err error
		if spec.Folder() {
			made, seen, err = a.keepFolder(ctx, spec)
		} else {
			made, seen, err = a.keepFile(ctx, spec)
		}
		switch {
		case isNotExist(err) && !spec.Required, errors.Is(err, files.ErrEmpty) && !spec.Required && spec.Folder():
			continue // a folder is there before the tool is, so an empty one is none
		case isNotExist(err):
			return nil, fmt.Sprintf("the tool exited with 0 but made no %s", spec.Name), err
		case errors.Is(err, files.ErrEmpty):
			return nil, fmt.Sprintf("the tool exited with 0 but its %s is empty", spec.Name), err
		case err != nil:
			return nil, fmt.Sprintf("the %s cannot be taken: %s", spec.Name, plainMessage(err)), err
		}
		list = append(list, made...)
		a.vars.Artifacts[spec.Name] = seen
	}
	return list, "", nil
}

func (a *attempt) keepFile(ctx context.Context, spec schemas.ArtifactSpec) ([]jobs.Artifact, schemas.Artifact, error) {
	from := a.vars.Outputs[spec.Name]
	kept, err := files.KeepArtifact(ctx, from, string(a.e.exec.AttemptDir(a.job.ID, a.n)), filepath.Base(from))
	if err != nil {
		return nil, schemas.Artifact{}, err
	}
	if why := otherMedia(spec, kept.MediaType); why != "" {
		return nil, schemas.Artifact{}, errors.New(why)
	}
	rel, err := filepath.Rel(a.e.exec.JobDir(a.job.ID), kept.Path)
	a.vars.Outputs[spec.Name] = kept.Path
	made := jobs.Artifact{Name: spec.Name, Size: kept.Size, MediaType: kept.MediaType, SHA256: kept.SHA256, Kept: rel}
	return []jobs.Artifact{made}, schemas.Artifact{Size: kept.Size, MediaType: kept.MediaType, SHA256: kept.SHA256, Files: 1}, err
}

// keepFolder keeps a folder, which is one artifact, or a list, of which each file is
// one.
func (a *attempt) keepFolder(ctx context.Context, spec schemas.ArtifactSpec) ([]jobs.Artifact, schemas.Artifact, error) {
	from := a.vars.Outputs[spec.Name]
	rules := treeRules(spec.FolderLimits)
	if spec.Names != "" {
		var err error
		if rules.Names, err = regexp.Compile(spec.Names); err != nil {
			return nil, schemas.Artifact{}, err
		}
	}
	kept, err := files.KeepFolder(ctx, from, string(a.e.exec.AttemptDir(a.job.ID, a.n)), filepath.Base(from), rules)
	if err != nil {
		return nil, schemas.Artifact{}, err
	}
	rel, err := filepath.Rel(a.e.exec.JobDir(a.job.ID), kept.Path)
	if err != nil {
		return nil, schemas.Artifact{}, err
	}
	var each []jobs.Artifact
	seen := schemas.Artifact{Size: kept.Size, MediaType: files.MediaTypeFolder, SHA256: kept.Digest(), Files: kept.Files}
	for _, f := range kept.Entries {
		var why string
		switch {
		case f.Folder && spec.Kind == schemas.KindList:
			why = "it is a folder, and a list is of files only"
		case f.Folder:
			continue
		case f.Size == 0 && spec.Kind == schemas.KindList:
			why = "it is empty"
		case len(spec.MediaTypes) > 0:
			why = otherMedia(spec, f.MediaType)
		}
		if why != "" {
			return nil, seen, fmt.Errorf("%q: %s", f.Path, why)
		}
		if spec.Kind == schemas.KindList {
			seen.Items = append(seen.Items, schemas.Artifact{Name: f.Path, Size: f.Size, MediaType: f.MediaType, SHA256: f.SHA256})
			each = append(each, jobs.Artifact{
				Name: spec.Name + "/" + f.Path, Size: f.Size, MediaType: f.MediaType, SHA256: f.SHA256, Kept: filepath.Join(rel, f.Path),
			})
		}
	}
	a.vars.Outputs[spec.Name] = kept.Path
	if spec.Kind == schemas.KindList {
		return each, seen, nil
	}
	return []jobs.Artifact{{
		Name: spec.Name, Size: kept.Size, MediaType: seen.MediaType, SHA256: seen.SHA256, Kept: rel, Folder: true, Files: kept.Files,
	}}, seen, nil
}

func treeRules(l schemas.FolderLimits) files.TreeRules {
	return files.TreeRules{Files: l.MaxFiles, Bytes: int64(l.MaxBytes), Depth: l.MaxDepth}
}

// otherMedia says that a file's first bytes are not what the manifest says, or "".
func otherMedia(spec schemas.ArtifactSpec, mediaType string) string {
	if len(spec.MediaTypes) == 0 || slices.Contains(spec.MediaTypes, mediaType) {
		return ""
	}
	return fmt.Sprintf("it is %s by its first bytes, not %s", mediaType, strings.Join(spec.MediaTypes, " or "))
}

// outputsEvidence says what was made, a list in one line.
func (a *attempt) outputsEvidence(artifacts []jobs.Artifact) []jobs.Evidence {
	var list []jobs.Evidence
	say := func(format string, args ...any) {
		list = append(list, jobs.Evidence{Kind: jobs.EvidenceOutputs, Attempt: a.n, At: a.e.now(), Detail: fmt.Sprintf(format, args...)})
	}
	for _, art := range artifacts {
		switch {
		case art.Folder:
			say("%s: %d files, %d bytes, sha256 %s of the folder", art.Name, art.Files, art.Size, art.SHA256)
		case !strings.Contains(art.Name, "/"):
			say("%s: %d bytes, sha256 %s", art.Name, art.Size, art.SHA256)
		}
	}
	for _, spec := range a.tool.Artifacts {
		if seen, made := a.vars.Artifacts[spec.Name]; made && spec.Kind == schemas.KindList {
			say("%s: a list of %d files, %d bytes, sha256 %s of their folder", spec.Name, seen.Files, seen.Size, seen.SHA256)
		}
	}
	return list
}
