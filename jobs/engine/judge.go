package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/policy"
	"github.com/macexec/macexec/schemas"
)

// judgement is everything that is known of a new call before it is stored.
type judgement struct {
	tool        *schemas.Tool
	ref         jobs.ToolRef
	variant     *schemas.Variant // nil for a tool that only publishes
	slot        string
	args        any
	secrets     map[string]string
	verdicts    jobs.Verdicts
	decision    jobs.Decision
	fingerprint string
	inputs      []jobs.InputFile
	publishes   []jobs.PublishStep
	programs    []jobs.Program
	binding     jobs.Binding
}

// on puts what was judged into an error about the call.
func (j *judgement) on(err *jobs.Error) *jobs.Error {
	err.Verdicts, err.Decision = &j.verdicts, &j.decision
	return err
}

// judge gives the schema and business verdicts and the policy's decision. A refusal
// carries the verdicts as far as they were reached; any other error is a fault.
func (e *Engine) judge(ctx context.Context, c Caller, req Request, args any) (*judgement, error) {
	tool, ok := e.registry.Tool(req.Tool, req.ToolVersion)
	if !ok {
		return &judgement{}, refused{e.noSuchTool(req)}
	}
	j := &judgement{tool: tool, args: args, ref: e.refOf(tool)}
	if findings := tool.Validate(args); len(findings) > 0 {
		return j, refusal(jobs.CodeArgumentsSchema, "schema", findings)
	}
	j.secrets = tool.Secrets(args)
	j.fingerprint = e.fingerprint(req, args, secretPointers(j.secrets))
	if err := e.judgeBusiness(ctx, c, req, j); err != nil {
		return j, err
	}
	j.verdicts = jobs.Verdicts{
		SyntaxValid: true, SchemaValid: true, BusinessValid: true,
		SyntaxChecked: true, SchemaChecked: true, BusinessChecked: true,
	}
	j.decision = e.decideNow(c.Principal, req.Purpose, req.Context.VisibleTools, j.ref, j.publishes)
	if j.decision.Effect != jobs.RequireApproval {
		return j, nil
	}
	binding, err := e.bind(ctx, c.Principal, j)
	if err != nil {
		if finding, ok := fileFinding("", err); ok {
			return j, refusal(jobs.CodeArgumentsBusiness, "business", []schemas.Finding{finding})
		}
		return j, ownFault(err)
	}
	j.binding = binding
	return j, nil
}

// refOf pins a tool. Where the host cannot confine a tool to its folder, an
// operator's word that it only reads or stages is not enough.
func (e *Engine) refOf(t *schemas.Tool) jobs.ToolRef {
	ref := jobs.ToolRef{
		Name: t.Tool, Version: t.Version, ManifestDigest: t.Digest,
		Effects: jobs.Effects(t.Effects), Destructive: t.Destructive,
	}
	if !e.confinement.Files && t.Source != "shipped" && runs(t) {
		ref.Effects = jobs.EffectsExternal
	}
	return ref
}

func (e *Engine) noSuchTool(req Request) *jobs.Error {
	var names []string
	for _, t := range e.registry.Tools() {
		names = append(names, t.Tool)
	}
	what := fmt.Sprintf("no tool %q", req.Tool)
	if req.ToolVersion != "" {
		what = fmt.Sprintf("no tool %q of version %q", req.Tool, req.ToolVersion)
	}
	err := jobs.Errorf(jobs.CodeToolNotFound, "there is %s here; there are: %s", what, strings.Join(names, ", "))
	err.Verdicts = &jobs.Verdicts{SyntaxChecked: true, SyntaxValid: true}
	return err
}

// judgeBusiness asks whether the call makes sense on this host now.
func (e *Engine) judgeBusiness(ctx context.Context, c Caller, req Request, j *judgement) error {
	var findings []schemas.Finding
	if len(j.tool.Purposes) > 0 && !slices.Contains(j.tool.Purposes, string(req.Purpose)) {
		findings = append(findings, schemas.Finding{
			Keyword: "purpose",
			Message: fmt.Sprintf("%s is not for the purpose %q", j.tool.Tool, req.Purpose),
			Hint:    "use one of " + strings.Join(j.tool.Purposes, ", "),
		})
	}
	vars := schemas.Vars{
		Args: j.args, Inputs: map[string]schemas.File{}, Secrets: byArgument(j.secrets),
		Call: schemas.CallVars{Purpose: string(req.Purpose), Replace: req.Options.Replace, Tool: j.tool.Tool, Version: j.tool.Version},
	}
	var bytesIn int64
	for _, arg := range j.tool.Files(j.args) {
		if arg.Role != schemas.RoleInput {
			continue
		}
		in, facts, finding, err := e.lookAtInput(ctx, c.Principal, j, arg)
		if err != nil {
			return ownFault(err)
		}
		if finding != nil {
			findings = append(findings, *finding)
			continue
		}
		j.inputs = append(j.inputs, in)
		vars.Inputs[arg.Name] = facts
		bytesIn += in.Size
	}
	if e.limits().RequireConfinement && !e.confinement.Files && runs(j.tool) {
		findings = append(findings, schemas.Finding{
			Keyword: "confinement", Message: "this host cannot confine a tool to its own folder, and its configuration requires that",
			Hint: "use a host that can (Linux with Landlock, macOS), or set confinement to best_effort in config.yaml",
		})
	}
	published, err := e.lookAtPublishes(ctx, c.Principal, req, j)
	if err != nil {
		return ownFault(err)
	}
	findings = append(findings, published...)
	findings = append(findings, e.lookAtPrograms(ctx, j, vars)...)
	if free, err := files.FreeBytes(e.exec.Root()); err == nil && free < bytesIn+minFreeBytes {
		findings = append(findings, schemas.Finding{
			Keyword: keywordSpace,
			Message: fmt.Sprintf("%d bytes are free where jobs are staged; this call needs %d", free, bytesIn+minFreeBytes),
			Hint:    "free some room on the host, or send a smaller input",
		})
	}
	if len(findings) == 0 {
		findings = j.tool.Check(ctx, vars)
	}
	// A file that is looked at twice, as an input and as what is to be removed, is
	// told of once.
	findings = slices.CompactFunc(findings, func(a, b schemas.Finding) bool { return a == b })
	if len(findings) == 0 {
		return nil
	}
	code := jobs.CodeArgumentsBusiness
	if len(findings) == 1 && findings[0].Keyword == keywordSpace {
		code = jobs.CodeDiskFull
	}
	if slices.ContainsFunc(findings, func(f schemas.Finding) bool { return f.Keyword == "program" }) {
		code = jobs.CodeToolUnavailable
	}
	if len(findings) == 1 && findings[0].Keyword == keywordOtherHost {
		return j.elsewhere(findings)
	}
	return refusal(code, "business", findings)
}

// keywordOtherHost is the finding that a job whose output is wanted is on another host.
const keywordOtherHost = "other_host"

// elsewhere refuses a call whose one fault is that it was sent to the wrong host, so
// that an orchestrator can send it to the right one.
func (j *judgement) elsewhere(findings []schemas.Finding) error {
	no := refusal(jobs.CodeOtherHost, "business", findings)
	for _, arg := range j.tool.Files(j.args) {
		if arg.Pointer == findings[0].Pointer {
			id, _, _ := strings.Cut(strings.TrimPrefix(arg.Value, jobPrefix), "/")
			no.why = no.why.With("host", hostOf(id)).WithJob(id)
		}
	}
	return no
}

// keywordSpace is the finding that there is no room to stage the inputs.
const keywordSpace = "disk_space"

// minFreeBytes is the room that a job needs besides its inputs.
const minFreeBytes = 64 << 20

// lookAtInput says what a file argument names, without copying it, or in a finding
// what is wrong with it.
func (e *Engine) lookAtInput(ctx context.Context, principal string, j *judgement, arg schemas.FileArgument) (jobs.InputFile, schemas.File, *schemas.Finding, error) {
	f, in, err := e.openInput(ctx, principal, j.args, arg)
	if err != nil {
		finding, err := asFinding(arg.Pointer, err)
		return in, schemas.File{}, finding, err
	}
	defer f.Close()
	mediaType, sniffed := files.MediaTypeFolder, files.KindFolder
	if in.Folder {
		err = measure(ctx, f, arg, &in)
	} else {
		mediaType, sniffed, err = files.SniffFile(f)
	}
	if err == nil && (in.Size == 0 && !in.Folder || in.Folder && in.Files == 0) && runs(j.tool) {
		err = files.ErrEmpty
	}
	if err != nil {
		finding, err := asFinding(arg.Pointer, err)
		return in, schemas.File{}, finding, err
	}
	kind := string(sniffed)
	in.MediaType = mediaType
	if (len(arg.Kinds) > 0 || in.Folder) && !slices.Contains(arg.Kinds, kind) {
		return in, schemas.File{}, otherKind(arg, in, kind), nil
	}
	return in, schemas.File{
		Name: path.Base(in.Path), Size: in.Size, MediaType: mediaType, Kind: kind, SHA256: in.SHA256, Files: in.Files,
	}, nil, nil
}

// otherKind says that an argument names something of a kind that the tool does not take.
func otherKind(arg schemas.FileArgument, in jobs.InputFile, kind string) *schemas.Finding {
	wanted := strings.Join(arg.Kinds, " or ")
	f := &schemas.Finding{
		Pointer: arg.Pointer, Keyword: "kind",
		Message: fmt.Sprintf("%q holds %s by its first bytes (%s), not %s", in.Reference, kind, in.MediaType, wanted),
		Hint:    "name a file that really is " + wanted + "; the name's ending does not count",
	}
	switch {
	case in.Folder:
		f.Message, f.Hint = fmt.Sprintf("%q is a folder, not %s", in.Reference, wanted), "name a file"
	case len(arg.Kinds) == 1 && arg.TakesFolder():
		f.Message, f.Hint = fmt.Sprintf("%q is a file, not a folder", in.Reference), "name a folder, or the artifact of a job that is one"
	}
	return f
}

// measure says how much a folder holds, and refuses one that could not be taken in.
func measure(ctx context.Context, f *os.File, arg schemas.FileArgument, in *jobs.InputFile) error {
	if !arg.TakesFolder() {
		return nil // it is refused for its kind, or moved as it is
	}
	tree, err := files.MeasureFolder(ctx, f, treeRules(arg.Limits))
	in.Size, in.Files = tree.Size, tree.Files
	return err
}

// lookAtPublishes works out what the call would change in a project.
func (e *Engine) lookAtPublishes(ctx context.Context, principal string, req Request, j *judgement) ([]schemas.Finding, error) {
	var findings []schemas.Finding
	byName := map[string]schemas.FileArgument{}
	for _, arg := range j.tool.Files(j.args) {
		byName[arg.Name] = arg
	}
	for _, p := range j.tool.Publish {
		name := p.At
		if p.Remove != "" {
			name = p.Remove
		}
		arg, given := byName[name]
		if !given {
			continue
		}
		made, _ := j.tool.Artifact(p.Create)
		step := jobs.PublishStep{Verb: jobs.VerbCreate, Artifact: p.Create, Project: projectOf(j.args), Path: arg.Value, Folder: made.Folder()}
		if p.Remove != "" {
			step.Verb, step.Artifact, step.Folder = jobs.VerbRemove, "", arg.TakesFolder()
		}
		if err := e.lookAtDestination(ctx, principal, &step, req.Options.Replace); err != nil {
			finding, fault := asFinding(arg.Pointer, err)
			if fault != nil {
				return nil, fault
			}
			if isNotExist(err) && step.Verb != jobs.VerbRemove {
				finding.Keyword, finding.Hint = "folder", "make the folder in the project first, or choose another output"
			}
			findings = append(findings, *finding)
			continue
		}
		j.publishes = append(j.publishes, step)
	}
	return findings, nil
}

func (e *Engine) lookAtDestination(ctx context.Context, principal string, step *jobs.PublishStep, replace bool) error {
	root, err := e.openProject(ctx, principal, step.Project)
	if err != nil {
		return err
	}
	defer root.Close()
	there, err := root.Stat(step.Path)
	switch {
	case step.Verb == jobs.VerbRemove:
		step.Folder = step.Folder && err == nil && there.Mode.IsDir()
	case isNotExist(err):
		return parentExists(root, step.Path)
	case err != nil:
		return err
	case step.Folder && !there.Mode.IsDir():
		return fmt.Errorf("%q: %w, and a folder takes the place of a folder only", step.Path, files.ErrNotFolder)
	case !step.Folder && !there.Regular():
		return fmt.Errorf("%q: %w", step.Path, files.ErrNotRegular)
	case !replace:
		return fmt.Errorf("%q: %w", step.Path, files.ErrTaken)
	default:
		step.Verb = jobs.VerbReplace
	}
	step.OldSHA256, err = digestAt(ctx, root, step.Path, step.Folder)
	return err
}

// parentExists refuses a destination whose folder is not there: macexec makes no
// folders in a project that nobody asked for.
func parentExists(root *files.Root, p string) error {
	folder := path.Dir(p)
	if folder == "." {
		return nil
	}
	there, err := root.Stat(folder)
	if err == nil && !there.Mode.IsDir() {
		err = fmt.Errorf("%q: %w", folder, files.ErrNotFolder)
	}
	return err
}

// lookAtPrograms chooses the variant and says what is missing for it.
func (e *Engine) lookAtPrograms(ctx context.Context, j *judgement, vars schemas.Vars) []schemas.Finding {
	if !runs(j.tool) {
		j.slot = publishSlot
		return nil
	}
	variant, missing := e.chooseVariant(j.tool)
	if variant == nil {
		return []schemas.Finding{{
			Keyword: "program",
			Message: fmt.Sprintf("%s needs %s, which this host does not have in %s", j.tool.Tool, strings.Join(missing, ", "), strings.Join(e.programs.Dirs(), ":")),
			Hint:    "ask the operator to install it, or to add its folder to tool_path in config.yaml",
		}}
	}
	j.variant, j.slot = variant, variant.Slot
	programs, findings := e.programsOf(ctx, variant, vars)
	j.programs = programs
	return findings
}

// decideNow asks the policy about a call as it stands.
func (e *Engine) decideNow(principal string, purpose jobs.Purpose, visible []string, tool jobs.ToolRef, publishes []jobs.PublishStep) jobs.Decision {
	call := policy.Call{
		Principal: principal, Tool: tool.Name, Version: tool.Version, Purpose: string(purpose),
		Effects: string(tool.Effects), Destructive: tool.Destructive, VisibleTools: visible,
	}
	for _, step := range publishes {
		call.Replaces = call.Replaces || step.Verb == jobs.VerbReplace
		call.Removes = call.Removes || step.Verb == jobs.VerbRemove
	}
	d := e.policy.Decide(call)
	return jobs.Decision{
		Effect: jobs.DecisionEffect(d.Effect), Rules: d.Rules, Reason: d.Reason,
		PolicyVersion: e.policy.Version(), DecidedAt: e.now(),
	}
}

// bind fixes what a person would approve: the digests of the inputs, of what is to
// be replaced or removed, and of the programs.
func (e *Engine) bind(ctx context.Context, principal string, j *judgement) (jobs.Binding, error) {
	b := jobs.Binding{
		Tool: j.ref.Name, Version: j.ref.Version, ManifestDigest: j.ref.ManifestDigest,
		Fingerprint: j.fingerprint, Inputs: map[string]string{}, Programs: map[string]string{},
		PolicyVersion: e.policy.Version(), Requester: principal,
	}
	for _, arg := range j.tool.Files(j.args) {
		if arg.Role != schemas.RoleInput {
			continue
		}
		f, in, err := e.openInput(ctx, principal, j.args, arg)
		if err != nil {
			return b, err
		}
		err = digestInput(ctx, f, arg, &in)
		_ = f.Close()
		if err != nil {
			return b, err
		}
		b.Inputs[arg.Pointer] = in.SHA256
	}
	for _, step := range j.publishes {
		if step.OldSHA256 != "" {
			b.Inputs[string(step.Verb)+":"+step.Path] = step.OldSHA256
		}
	}
	for _, p := range j.programs {
		b.Programs[p.Path] = p.SHA256
	}
	return sealBinding(b)
}

// keywordTaken is the finding that something is at the destination.
const keywordTaken = "destination_taken"

// asFinding makes a finding of an error that the caller can mend, and hands any other
// on: a fault of the store or the host is not the call's.
func asFinding(pointer string, err error) (*schemas.Finding, error) {
	if finding, ok := fileFinding(pointer, err); ok {
		return &finding, nil
	}
	return nil, err
}

// fileFinding says in a finding what is wrong with a file argument; false if it is
// not the argument's fault.
func fileFinding(pointer string, err error) (schemas.Finding, bool) {
	f := schemas.Finding{Pointer: pointer, Keyword: "file", Message: plainMessage(err), Hint: "check the name and the project"}
	switch {
	case isNotExist(err):
		f.Keyword, f.Hint = "exists", "name a file that exists in the project, or upload one first"
	case errors.Is(err, files.ErrTaken):
		f.Keyword, f.Hint = keywordTaken, "choose another output, or ask for the file to be replaced"
	case errors.Is(err, files.ErrEmpty):
		f.Keyword, f.Hint = "not_empty", "name a file that has content"
	case errors.Is(err, files.ErrNotRegular), errors.Is(err, files.ErrNotFolder):
		f.Keyword, f.Hint = "regular_file", "name a regular file, not a folder, pipe, device or link"
	case errors.Is(err, files.ErrPath), errors.Is(err, files.ErrOutside), errors.Is(err, files.ErrNameTooLong):
		f.Keyword, f.Hint = "path", "name a file by its path inside the project, such as \"clips/a.mp4\""
	case errors.Is(err, files.ErrDenied):
		f.Keyword, f.Hint = "permission", "let the user that runs macexec read the file, or write to the folder"
	case errors.Is(err, files.ErrTree), errors.Is(err, files.ErrTooLarge):
		f.Keyword, f.Hint = "folder_content", "name a folder of plain files and folders, within the limits of the tool"
	case errors.Is(err, files.ErrChanged):
		f.Keyword, f.Hint = "changed", "call again when the file is no longer being written"
	default:
		switch jobs.CodeOf(err) {
		case jobs.CodeProjectNotFound:
			f.Pointer, f.Keyword, f.Hint = "/project_id", "project", "use a project that the host has (macexec projects list)"
		case jobs.CodeFileNotFound, jobs.CodeJobNotFound, jobs.CodeArtifactGone, jobs.CodeArtifactChanged:
			f.Keyword, f.Hint = "exists", "upload the file first, or name an artifact that a job has"
		case jobs.CodeStateConflict:
			f.Keyword, f.Hint = "job_completed", "wait for that job to complete; if it has failed, name another"
		case jobs.CodeOtherHost:
			f.Keyword, f.Hint = keywordOtherHost, "send the call to that host, or download the file there and upload it here"
		case jobs.CodeRequestInvalid:
			f.Keyword, f.Hint = "reference", "a file is a path, sha256:<hex>, or job:<id>/<artifact> of this host"
		default:
			return f, false
		}
	}
	return f, true
}

// ownFault is an error that is not the call's: the call is neither refused nor accepted.
func ownFault(err error) error {
	if e, ok := errors.AsType[*jobs.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return callerGone(err)
	}
	return jobs.Errorf(jobs.CodeInternal, "the call could not be looked at: %w", err)
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// runs reports whether a tool starts a process; one that does not only publishes.
func runs(t *schemas.Tool) bool { return len(t.Run) > 0 }
