package schemas_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/macexec/macexec/schemas"
)

// run is what became of one call of a tool that drive carried out.
type run struct {
	Findings []schemas.Finding // of the stage named by Stage
	Stage    string            // schema, business, before, accept, exit, output, verify, result; empty: completed
	Detail   string
	Result   map[string]any
	Outputs  map[string]string // artifact → path
	Work     string
	Stderr   string
}

// drive carries a call out as the engine would, without the engine: it stages
// the inputs, runs the steps and the command, and verifies. The input arguments
// are paths of files here.
func drive(t *testing.T, tool *schemas.Tool, arguments string) run {
	t.Helper()
	ctx := t.Context()
	args, findings := schemas.Parse([]byte(arguments), schemas.DefaultLimits())
	if findings != nil {
		t.Fatal(findings)
	}
	if f := tool.Validate(args); f != nil {
		return run{Stage: "schema", Findings: f}
	}
	vars := schemas.Vars{
		Args: args, Call: schemas.CallVars{Tool: tool.Manifest.Tool, Version: tool.Version, Purpose: "production"},
		Inputs: map[string]schemas.File{}, Outputs: map[string]string{}, Steps: map[string]any{},
		Artifacts: map[string]schemas.Artifact{}, Programs: map[string]schemas.Program{},
	}
	if f := tool.Check(ctx, vars); f != nil {
		return run{Stage: "business", Findings: f}
	}
	variant, missing := tool.Variant(runtime.GOOS, func(p string) bool { _, err := exec.LookPath(p); return err == nil })
	if variant == nil {
		if len(tool.Run) > 0 {
			t.Skipf("SKIPPED, NOT TESTED: %s needs %v", tool.Manifest.Tool, missing)
		}
	}
	r := run{Outputs: map[string]string{}, Work: t.TempDir()}
	vars.Work = r.Work
	for _, dir := range []string{"in", "out", "tmp"} {
		if err := os.Mkdir(filepath.Join(r.Work, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range tool.Files(args) {
		if f.Role == schemas.RoleInput {
			vars.Inputs[f.Name] = stage(t, f.Value, filepath.Join(r.Work, "in", f.Name))
		}
	}
	for _, a := range tool.Manifest.Artifacts {
		file, err := tool.ArtifactFile(ctx, a.Name, vars)
		if err != nil {
			t.Fatal(err)
		}
		r.Outputs[a.Name] = filepath.Join(r.Work, "out", file)
		if a.Folder() {
			if err := os.Mkdir(r.Outputs[a.Name], 0o700); err != nil {
				t.Fatal(err)
			}
		}
		vars.Outputs[a.Name] = r.Outputs[a.Name]
	}
	if variant == nil {
		return finish(t, tool, r, vars)
	}
	for name := range variant.Programs {
		path, _ := exec.LookPath(name)
		vars.Programs[name] = schemas.Program{Path: path, Version: "1"}
	}
	before, err := variant.Before(ctx, vars)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range before {
		if vars.Steps[s.Name], err = execute(ctx, s, r.Work, &r.Stderr); err != nil {
			r.Stage, r.Detail = "before", err.Error()
			return r
		}
	}
	if f := variant.Accept(ctx, vars); f != nil {
		r.Stage, r.Findings = "accept", f
		return r
	}
	command, err := variant.Command(ctx, vars)
	if err != nil {
		t.Fatal(err)
	}
	if vars.Tool, err = execute(ctx, command, r.Work, &r.Stderr); err != nil {
		r.Stage, r.Detail = "exit", err.Error()
		return r
	}
	for _, a := range tool.Manifest.Artifacts {
		if a.Folder() {
			vars.Artifacts[a.Name] = folderMade(t, r.Outputs[a.Name])
			if vars.Artifacts[a.Name].Files == 0 {
				r.Stage, r.Detail = "output", a.Name+" is empty"
				return r
			}
			continue
		}
		raw, err := os.ReadFile(r.Outputs[a.Name])
		if (err != nil || len(raw) == 0) && a.Required {
			r.Stage, r.Detail = "output", fmt.Sprintf("%s: %v, %d bytes", a.Name, err, len(raw))
			return r
		}
		sum := sha256.Sum256(raw)
		vars.Artifacts[a.Name] = schemas.Artifact{Size: int64(len(raw)), SHA256: hex.EncodeToString(sum[:]), MediaType: a.MediaTypes[0]}
	}
	after, err := variant.After(ctx, vars)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range after {
		if vars.Steps[s.Name], err = execute(ctx, s, r.Work, &r.Stderr); err != nil {
			r.Stage, r.Detail = "verify", err.Error()
			return r
		}
	}
	if f := variant.Verify(ctx, vars); f != nil {
		r.Stage, r.Findings = "verify", f
		return r
	}
	if _, err := os.Stat(filepath.Join(r.Work, "progress")); variant.Progress != nil && err != nil {
		t.Errorf("no progress was written: %v", err)
	}
	return finish(t, tool, r, vars)
}

func folderMade(t *testing.T, dir string) schemas.Artifact {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	made := schemas.Artifact{Files: len(entries), MediaType: "inode/directory", SHA256: strings.Repeat("0", 64)}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		made.Size += info.Size()
	}
	return made
}

func finish(t *testing.T, tool *schemas.Tool, r run, vars schemas.Vars) run {
	t.Helper()
	raw, err := tool.Result(t.Context(), vars)
	if err != nil {
		t.Fatal(err)
	}
	if f := tool.ValidateResult(raw); f != nil {
		t.Fatalf("result %s: %v", raw, f)
	}
	if err := json.Unmarshal(raw, &r.Result); err != nil {
		t.Fatal(err)
	}
	return r
}

func execute(ctx context.Context, s schemas.Step, work string, stderr *string) (any, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, s.Program, s.Argv...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &out, &errs
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + work, "TMPDIR=" + filepath.Join(work, "tmp"), "LC_ALL=C.UTF-8"}
	for name, value := range s.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	err := cmd.Run()
	*stderr += errs.String()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", s.Program, err, strings.TrimSpace(errs.String()))
	}
	if !s.Capture {
		return nil, nil
	}
	return s.Parse(ctx, out.Bytes())
}

// stage copies an input under a plain name and says what it looks like.
func stage(t *testing.T, from, to string) schemas.File {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, raw, 0o400); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	media := "application/octet-stream"
	for _, known := range []struct{ magic, media string }{
		{"\x89PNG", "image/png"},
		{"\xff\xd8\xff", "image/jpeg"},
		{"GIF8", "image/gif"},
		{"RIFF????WEBP", "image/webp"},
		{"II*\x00", "image/tiff"},
		{"BM", "image/bmp"},
		{"<svg", "image/svg+xml"},
	} {
		if matchMagic(raw, known.magic) {
			media = known.media
		}
	}
	return schemas.File{
		Path: to, Name: filepath.Base(from), Size: int64(len(raw)), MediaType: media,
		Kind: strings.Split(media, "/")[0], SHA256: hex.EncodeToString(sum[:]),
	}
}

func matchMagic(raw []byte, magic string) bool {
	if len(raw) < len(magic) {
		return false
	}
	for i := range len(magic) {
		if magic[i] != '?' && raw[i] != magic[i] {
			return false
		}
	}
	return true
}

// media makes a test file with a program of this host.
func media(t *testing.T, program string, argv ...string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %s is not installed", program)
	}
	if program == "ffmpeg" {
		argv = slices.Concat([]string{"-nostdin", "-hide_banner", "-v", "error", "-y"}, argv)
	}
	out, err := exec.CommandContext(t.Context(), program, argv...).CombinedOutput()
	if err != nil {
		exit, _ := errors.AsType[*exec.ExitError](err)
		t.Fatalf("%s %q: %v %v: %s", program, argv, err, exit, out)
	}
}

func keywords(findings []schemas.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Keyword)
	}
	return out
}

func shipped(t *testing.T, name string) *schemas.Tool {
	t.Helper()
	tool, ok := openShipped(t).Tool(name, "")
	if !ok {
		t.Fatalf("%s is not shipped", name)
	}
	return tool
}

func arguments(t *testing.T, pairs ...any) string {
	t.Helper()
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func completed(t *testing.T, r run) map[string]any {
	t.Helper()
	if r.Stage != "" {
		t.Fatalf("stopped at %s: %s %+v\n%s", r.Stage, r.Detail, r.Findings, r.Stderr)
	}
	return r.Result
}
