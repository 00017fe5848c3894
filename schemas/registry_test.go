package schemas_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/macexec/macexec/schemas"
)

func openShipped(t testing.TB) *schemas.Registry {
	t.Helper()
	r, err := schemas.Open(schemas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems() {
		t.Errorf("%s: %+v", p.File, p.Findings)
	}
	return r
}

func names(tools []*schemas.Tool) []string {
	var out []string
	for _, t := range tools {
		out = append(out, t.Manifest.Tool+" "+t.Version)
	}
	return out
}

func TestShippedTools(t *testing.T) {
	t.Parallel()
	r := openShipped(t)
	want := []string{"convert_audio", "convert_image", "delete_asset", "export_video", "extract_frames", "inspect_audio", "inspect_image", "inspect_video"}
	for i, tool := range r.Tools() {
		if i >= len(want) || tool.Manifest.Tool != want[i] || tool.Source != "shipped" || len(tool.Digest) != 64 {
			t.Errorf("%d: %s %s %s", i, tool.Manifest.Tool, tool.Source, tool.Digest)
		}
		if (tool.Manifest.Tool == "delete_asset") != tool.Destructive {
			t.Errorf("%s: destructive %v", tool.Manifest.Tool, tool.Destructive)
		}
	}
	if len(r.Tools()) != len(want) {
		t.Errorf("%v", names(r.Tools()))
	}
}

func TestDeleteAsset(t *testing.T) {
	t.Parallel()
	tool := shipped(t, "delete_asset")
	args := parsed(t, `{"project_id":"p","asset":"a/b.mov"}`)
	if f := tool.Validate(args); f != nil {
		t.Fatal(f)
	}
	raw, err := tool.Result(t.Context(), schemas.Vars{Args: args})
	if err != nil || string(raw) != `{"asset":"a/b.mov","project_id":"p","removed":true}` || tool.ValidateResult(raw) != nil {
		t.Errorf("%s %v", raw, err)
	}
	if files := tool.Files(args); len(files) != 1 || files[0].Role != schemas.RoleInput || files[0].Pointer != "/asset" || files[0].Value != "a/b.mov" {
		t.Errorf("%+v", files)
	}
	for _, asset := range []string{"sha256:" + strings.Repeat("0", 64), "job:1-a/video"} {
		if f := tool.Check(t.Context(), schemas.Vars{Args: map[string]any{"project_id": "p", "asset": asset}}); len(f) != 1 {
			t.Errorf("%s: %+v", asset, f)
		}
	}
}

// TestBadManifestDisablesOnlyItself holds G13 for manifests.
func TestBadManifestDisablesOnlyItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shipped, err := os.ReadFile("tools/export_video.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"1-good.yaml": baseManifest, "2-newer.yml": edited(t, "2026-11-01", "2027-01-01"), "3-again.yaml": baseManifest,
		"4-bad.yaml": edited(t, "title: Echo\n", ""), "5-shipped.yaml": string(shipped), "6-empty.yaml": "", "7-binary.yaml": "\xff\x00",
		"8-large.yaml": strings.Repeat("# x\n", 100_000), "9-deep.yaml": strings.Repeat("[", 20_000), "notes.txt": "not a manifest", ".hidden.yaml": "x",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := schemas.Open(schemas.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	for _, p := range r.Problems() {
		bad = append(bad, filepath.Base(p.File))
		if len(p.Findings) == 0 || p.Findings[0].Message == "" {
			t.Errorf("%s: %+v", p.File, p.Findings)
		}
	}
	want := []string{"3-again.yaml", "4-bad.yaml", "5-shipped.yaml", "6-empty.yaml", "7-binary.yaml", "8-large.yaml", "9-deep.yaml", "folder.yaml"}
	if !slices.Equal(bad, want) {
		t.Errorf("problems %v, want %v", bad, want)
	}
	newest, _ := r.Tool("echo_text", "")
	older, ok := r.Tool("echo_text", "2026-11-01")
	if newest.Version != "2027-01-01" || !ok || filepath.Base(older.Source) != "1-good.yaml" {
		t.Errorf("%v %v", newest.Version, older)
	}
	if _, ok := r.Tool("echo_text", "2020-01-01"); ok {
		t.Error("a version that is not there")
	}
	if video, ok := r.Tool("export_video", ""); !ok || video.Source != "shipped" {
		t.Error("the shipped tool was replaced")
	}
	if len(r.Tools()) != 9 || len(r.All()) != 10 {
		t.Errorf("%v %v", names(r.Tools()), names(r.All()))
	}
	if r, err := schemas.Open(schemas.Options{Dir: filepath.Join(dir, "nosuch")}); err != nil || len(r.Tools()) != 8 {
		t.Errorf("a missing folder: %v", err)
	}
}

// TestInputSchemaKeepsItsOrder: models read the arguments in the author's order.
func TestInputSchemaKeepsItsOrder(t *testing.T) {
	t.Parallel()
	text := string(shipped(t, "export_video").Input)
	at := -1
	for _, name := range []string{`"project_id":{`, `"input":{`, `"output":{`, `"format":{`, `"resolution":{`, `"include_audio":{`} {
		next := strings.Index(text, name)
		if next <= at {
			t.Errorf("%s at %d after %d", name, next, at)
		}
		at = next
	}
	if !strings.Contains(text, `"enum":["source","480p","720p","1080p","1440p","4K"]`) {
		t.Error(text)
	}
}

func TestToolServesManyAtOnce(t *testing.T) {
	t.Parallel()
	tool := loaded(t)
	variant, _ := tool.Variant("linux", func(string) bool { return true })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				args := map[string]any{"text": "x", "mode": "no"}
				if len(tool.Validate(args)) != 1 {
					t.Error("no finding")
				}
				if tool.Check(t.Context(), schemas.Vars{Args: args}) != nil {
					t.Error("a finding")
				}
				if _, err := variant.Command(t.Context(), schemas.Vars{Args: args}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		openShipped(b)
	}
}
