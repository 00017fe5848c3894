package schemas

import (
	"encoding/json"
	"maps"
)

// Vars are what a manifest's expressions see. Which of them an expression may
// use depends on where it stands: a check sees the arguments and the call only,
// a verification nearly everything.
type Vars struct {
	Args      any                 // as Parse gave it
	Call      CallVars            // call
	Inputs    map[string]File     // inputs.<argument>: the staged copies
	Outputs   map[string]string   // outputs.<artifact>: absolute paths in the attempt's folder
	Steps     map[string]any      // steps.<name>: what steps printed, parsed
	Tool      any                 // tool: what the command printed, parsed
	Artifacts map[string]Artifact // artifacts.<name>: what was made
	Programs  map[string]Program  // programs.<name>
	Secrets   map[string]string   // secrets.<argument>: only in env
	Work      string              // work: absolute path of the tool's own folder
}

// CallVars are the facts about the call.
type CallVars struct {
	Tool    string
	Version string
	Purpose string
	Replace bool
}

// File is a staged input.
type File struct {
	Path      string // absolute, a plain name
	Name      string // as the caller named it; only for people
	Size      int64
	MediaType string
	Kind      string // image, audio, video, …; folder
	SHA256    string
	Files     int // of a folder: how many it has
}

// Artifact is what the command made.
type Artifact struct {
	Size      int64 // of a folder or a list: of all files together
	MediaType string
	SHA256    string
	Files     int        // how many files it is
	Items     []Artifact // of a list: its files, by name
	Name      string     // of one of a list's files
}

// Program is an executable on this host.
type Program struct {
	Path    string
	Version string
}

// The variables of expressions.
const (
	varArgs      = "args"
	varCall      = "call"
	varInputs    = "inputs"
	varOutputs   = "outputs"
	varSteps     = "steps"
	varTool      = "tool"
	varArtifacts = "artifacts"
	varPrograms  = "programs"
	varSecrets   = "secrets"
	varWork      = "work"
	varParsed    = "parsed" // what a step's parser made; only in the step's value
)

// bind makes the values that expressions see. The arguments lose the secret ones
// and gain the defaults of the input schema.
func (t *Tool) bind(v Vars) map[string]any {
	args := map[string]any{}
	maps.Copy(args, t.defaults)
	if given, ok := v.Args.(map[string]any); ok {
		maps.Copy(args, given)
	}
	for name := range t.secrets {
		delete(args, name)
	}
	inputs := make(map[string]any, len(v.Inputs))
	for name, f := range v.Inputs {
		inputs[name] = map[string]any{
			"path": f.Path, "name": f.Name, "size": f.Size,
			"media_type": f.MediaType, "kind": f.Kind, "sha256": f.SHA256, "files": f.Files,
		}
	}
	artifacts := make(map[string]any, len(v.Artifacts))
	for name, a := range v.Artifacts {
		artifacts[name] = a.vars()
	}
	programs := make(map[string]any, len(v.Programs))
	for name, p := range v.Programs {
		programs[name] = map[string]any{"path": p.Path, "version": p.Version}
	}
	return map[string]any{
		varArgs: args, varInputs: inputs, varOutputs: texts(v.Outputs), varSteps: v.Steps, varTool: v.Tool,
		varArtifacts: artifacts, varPrograms: programs, varSecrets: texts(v.Secrets), varWork: v.Work,
		varCall: map[string]any{"tool": v.Call.Tool, "version": v.Call.Version, "purpose": v.Call.Purpose, "replace": v.Call.Replace},
	}
}

func (a Artifact) vars() map[string]any {
	all := map[string]any{"size": a.Size, "media_type": a.MediaType, "sha256": a.SHA256, "files": a.Files}
	if a.Items != nil {
		items := make([]any, len(a.Items))
		for i, item := range a.Items {
			items[i] = map[string]any{"name": item.Name, "size": item.Size, "media_type": item.MediaType, "sha256": item.SHA256}
		}
		all["items"] = items
	}
	return all
}

func texts(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// asObject reads JSON text that is known to be an object.
func asObject(raw json.RawMessage) map[string]any {
	tree, _ := Parse(raw, manifestLimits())
	object, _ := tree.(map[string]any)
	return object
}
