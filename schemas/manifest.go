package schemas

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Manifest is a tool as its file says it. schemas/manifest.schema.json is the
// same in JSON Schema, and is checked first.
type Manifest struct {
	Tool        string          `json:"tool"`
	Version     string          `json:"version"` // a date, YYYY-MM-DD
	Title       string          `json:"title"`
	Description string          `json:"description"` // what it does, and what it does not do
	Effects     string          `json:"effects"`     // none, staged or external
	Destructive bool            `json:"destructive"`
	Purposes    []string        `json:"purposes"`
	Needs       []string        `json:"needs"`  // network, gui_session, …
	Input       json.RawMessage `json:"input"`  // JSON Schema 2020-12 of the arguments
	Output      json.RawMessage `json:"output"` // JSON Schema 2020-12 of the result
	Checks      []CheckSpec     `json:"checks"` // before anything is staged
	Run         []VariantSpec   `json:"run"`    // none: the tool only publishes
	Artifacts   []ArtifactSpec  `json:"artifacts"`
	Publish     []PublishSpec   `json:"publish"`
	Result      string          `json:"result"` // CEL, a map
	Probe       *ProbeSpec      `json:"probe"`
	OnUnknown   string          `json:"on_unknown"` // what a person should look at
}

// Text is a text in a manifest: literal, or {cel: expression}.
type Text struct {
	Literal string
	CEL     string
}

// UnmarshalJSON takes a string or {"cel": string}.
func (t *Text) UnmarshalJSON(raw []byte) error {
	if err := json.Unmarshal(raw, &t.Literal); err == nil {
		return nil
	}
	var expression struct {
		CEL string `json:"cel"`
	}
	if err := json.Unmarshal(raw, &expression); err != nil {
		return fmt.Errorf("a text or {cel: expression} is wanted: %w", err)
	}
	t.CEL = expression.CEL
	return nil
}

// CheckSpec is one condition. Its expression must be true; false, and any error
// in it, gives the message.
type CheckSpec struct {
	Name    string `json:"name"`
	Expr    string `json:"expr"`
	Message Text   `json:"message"`
	Pointer string `json:"pointer"` // into the arguments; may be empty
	Hint    string `json:"hint"`
}

// VariantSpec is one way to run the tool. The first one whose platform and
// programs a host has is used.
type VariantSpec struct {
	Platforms []string               `json:"platforms"`
	Programs  map[string]ProgramSpec `json:"programs"`
	Before    []StepSpec             `json:"before"`
	Accept    []CheckSpec            `json:"accept"`
	Command   StepSpec               `json:"command"`
	Progress  *ProgressSpec          `json:"progress"`
	Timeout   Duration               `json:"timeout"`
	Slot      string                 `json:"slot"`
	Limits    RunLimits              `json:"limits"`
	After     []StepSpec             `json:"after"`
	Verify    []CheckSpec            `json:"verify"`
	Paths     PathsSpec              `json:"paths"`
	Network   bool                   `json:"network"`
}

// ProgramSpec is what a variant wants of a program. Its name in Programs is the
// name that is looked for on the tool path.
type ProgramSpec struct {
	Version  *VersionSpec  `json:"version"`
	Features []FeatureSpec `json:"features"`
}

// VersionSpec says how to ask a program for its version: the first group of the
// pattern, in what it prints.
type VersionSpec struct {
	Argv    []string `json:"argv"`
	Pattern string   `json:"pattern"`
}

// FeatureSpec says how to see that a program can do something: the pattern
// matches what it prints.
type FeatureSpec struct {
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Pattern string   `json:"pattern"`
	When    string   `json:"when"` // CEL over args and call; empty: always
}

// StepSpec is one start of a program.
type StepSpec struct {
	Name    string          `json:"name"` // of a step before or after; the command has none
	Program string          `json:"program"`
	Argv    []Text          `json:"argv"` // without the program itself
	Env     map[string]Text `json:"env"`
	Stdout  string          `json:"stdout"` // log or capture; a step is always captured
	Parser  Parser          `json:"parser"`
	Value   string          `json:"value"` // of a step before or after: CEL over parsed; empty: parsed itself
}

// ProgressSpec says where the command tells how far it is.
type ProgressSpec struct {
	Kind         string `json:"kind"` // ffmpeg
	File         string `json:"file"` // a plain name in the work folder
	TotalSeconds string `json:"total_seconds"`
}

// RunLimits bound the command. Zero: the daemon's own limit.
type RunLimits struct {
	Memory    Size  `json:"memory"`
	FileSize  Size  `json:"file_size"`
	OpenFiles int64 `json:"open_files"`
}

// PathsSpec names folders outside the attempt that the command may use.
type PathsSpec struct {
	Read  []string `json:"read"`
	Write []string `json:"write"` // only with effects external
	Cache []string `json:"cache"` // written, but their content is no result
}

// ArtifactSpec is a file, a folder or a list of files that the command makes.
type ArtifactSpec struct {
	FolderLimits

	Name       string   `json:"name"`
	Kind       string   `json:"kind"` // KindFile (also when left out), KindFolder or KindList
	File       string   `json:"file"` // CEL, a plain name: of the file, or of the folder that holds the files
	MediaTypes []string `json:"media_types"`
	Required   bool     `json:"required"`
	Names      string   `json:"names"` // RE2: the name of every file in a folder or a list
}

// The kinds of an artifact.
const (
	KindFile   = "file"
	KindFolder = "folder" // one artifact: a folder with all that is in it
	KindList   = "list"   // an artifact for each file in a folder that has no folders in it
)

// Folder says whether the command finds a folder to write into, not a name.
func (a ArtifactSpec) Folder() bool { return a.Kind == KindFolder || a.Kind == KindList }

// FolderLimits bound a folder. Once a manifest is loaded none is zero where it counts.
type FolderLimits struct {
	MaxFiles int  `json:"max_files"`
	MaxBytes Size `json:"max_bytes"` // of all files together
	MaxDepth int  `json:"max_depth"` // names in a path
}

// What bounds a folder whose manifest says nothing, and the most that it may say.
const (
	defaultFiles, mostFiles         = 10_000, 100_000
	defaultListFiles, mostListFiles = 100, 1_000
	defaultBytes                    = 64 << 30
	defaultDepth, mostDepth         = 16, 64
)

// orDefault fills in what a manifest leaves out.
func (l FolderLimits) orDefault(files int) FolderLimits {
	if l.MaxFiles == 0 {
		l.MaxFiles = files
	}
	if l.MaxBytes == 0 {
		l.MaxBytes = defaultBytes
	}
	if l.MaxDepth == 0 {
		l.MaxDepth = defaultDepth
	}
	return l
}

// PublishSpec is one step of the publish plan. Create places an artifact at the
// path argument At, if the call has that argument; where the call says replace
// and the destination exists, it replaces. Remove moves the path argument's file
// to the trash.
type PublishSpec struct {
	Create string `json:"create"`
	At     string `json:"at"`
	Remove string `json:"remove"`
}

// ProbeSpec proves whether an external tool's effect happened. Its parsed output
// is steps.probe.
type ProbeSpec struct {
	Program     string `json:"program"`
	Argv        []Text `json:"argv"`
	Parser      Parser `json:"parser"`
	Happened    string `json:"happened"`     // CEL
	NotHappened string `json:"not_happened"` // CEL
}

// Duration is a time.Duration written as in "90s" or "1h".
type Duration time.Duration

// UnmarshalJSON takes what time.ParseDuration takes, if it is positive.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	v, err := time.ParseDuration(text)
	if err == nil && v <= 0 {
		err = fmt.Errorf("the duration %s is not positive", text)
	}
	*d = Duration(v)
	return err
}

// Size is a number of bytes, written as a whole number with or without KiB, MiB,
// GiB or TiB.
type Size int64

// UnmarshalJSON takes a text or a number.
func (s *Size) UnmarshalJSON(raw []byte) error {
	text := strings.Trim(string(raw), `"`)
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = rest, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return fmt.Errorf("%s is not a number of bytes such as 512MiB", raw)
	}
	*s = Size(n << shift)
	return nil
}
