package schemas_test

import (
	"os"
	"strings"
	"testing"

	"github.com/macexec/macexec/schemas"
)

// folderManifest is a tool that makes a folder and a list, and takes a folder in.
const folderManifest = `
tool: pack
version: "2026-11-01"
title: Pack
description: Packs a folder into another one.
effects: staged
purposes: [production]
input:
  type: object
  additionalProperties: false
  required: [input]
  properties:
    input: {type: string, maxLength: 200, description: a folder, x-macexec: {path: input, kinds: [folder], max_files: 7}}
    output: {type: string, maxLength: 200, description: where it goes, x-macexec: {path: output}}
output: {type: object, additionalProperties: false, required: [n], properties: {n: {type: integer}, names: {type: array}}}
run:
  - platforms: [linux, darwin]
    programs: {true: {}}
    command: {program: "true", argv: [{cel: outputs.tree}]}
    timeout: 1m
    slot: pack
artifacts:
  - {name: tree, kind: folder, file: "'tree'", required: true, max_files: 12, max_bytes: 1MiB, max_depth: 2}
  - {name: frames, kind: list, file: "'frames'", names: '^f[0-9]+\.png$', media_types: [image/png], required: true}
publish:
  - {create: tree, at: output}
result: "{'n': artifacts.frames.files, 'names': artifacts.frames.items.map(i, i.name)}"
`

func compile(t *testing.T, text string) *schemas.Tool {
	t.Helper()
	tool, err := schemas.Compile([]byte(text), "test")
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func TestFolderArtifacts(t *testing.T) {
	t.Parallel()
	tool := compile(t, folderManifest)
	tree, _ := tool.Artifact("tree")
	frames, _ := tool.Artifact("frames")
	if want := (schemas.FolderLimits{MaxFiles: 12, MaxBytes: 1 << 20, MaxDepth: 2}); tree.FolderLimits != want || !tree.Folder() {
		t.Errorf("tree: %+v", tree)
	}
	if want := (schemas.FolderLimits{MaxFiles: 100, MaxBytes: 64 << 30, MaxDepth: 16}); frames.FolderLimits != want || !frames.Folder() {
		t.Errorf("frames: %+v", frames)
	}
	for _, arg := range tool.FileArguments() {
		if want := (schemas.FolderLimits{MaxFiles: 7, MaxBytes: 64 << 30, MaxDepth: 16}); arg.TakesFolder() && arg.Limits != want || arg.TakesFolder() != (arg.Name == "input") {
			t.Errorf("%s: %+v", arg.Name, arg)
		}
	}
	raw, err := tool.Result(t.Context(), schemas.Vars{Artifacts: map[string]schemas.Artifact{
		"frames": {Files: 2, Items: []schemas.Artifact{{Name: "f1.png"}, {Name: "f2.png"}}},
	}})
	if err != nil || string(raw) != `{"n":2,"names":["f1.png","f2.png"]}`+"\n" && strings.TrimSpace(string(raw)) != `{"n":2,"names":["f1.png","f2.png"]}` {
		t.Errorf("result %s, %v", raw, err)
	}
}

// What makes no sense of a folder or a list is said when the manifest is read.
func TestFolderManifestProblems(t *testing.T) {
	t.Parallel()
	const list = `{name: frames, kind: list, file: "'frames'", names: '^f[0-9]+\.png$', media_types: [image/png], required: true}`
	for name, test := range map[string]struct{ old, new, pointer, says string }{
		"no such kind":            {"kind: folder", "kind: bundle", "/artifacts/0/kind", ""},
		"limits of a file":        {"kind: folder, ", "", "/artifacts/0", ""},
		"a list without names":    {`names: '^f[0-9]+\.png$', `, "", "/artifacts/1", "names"},
		"a list without types":    {", media_types: [image/png]", "", "/artifacts/1", "media_types"},
		"too long a list":         {list, strings.Replace(list, "required", "max_files: 1001, required", 1), "/artifacts/1/max_files", "1000"},
		"a deep list":             {list, strings.Replace(list, "required", "max_depth: 2, required", 1), "/artifacts/1/max_depth", ""},
		"a pattern that is none":  {`'^f[0-9]+\.png$'`, "'^f('", "/artifacts/1/names", "RE2"},
		"an open pattern":         {`'^f[0-9]+\.png$'`, "'png'", "/artifacts/1/names", "anywhere"},
		"a published list":        {"create: tree", "create: frames", "/publish/0/create", "list"},
		"limits of a file's mark": {"kinds: [folder], max_files: 7", "kinds: [image], max_files: 7", "/input/properties/input/x-macexec", "folder"},
		"in place":                {"kinds: [folder], max_files: 7", "kinds: [folder], in_place: true", "/input/properties/input/x-macexec/in_place", "copy"},
		"too many in":             {"max_files: 7", "max_files: 100001", "/input/properties/input/x-macexec", "100000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(folderManifest, test.old, test.new, 1)
			if text == folderManifest {
				t.Fatal("nothing was changed")
			}
			report, err := schemas.Lint([]byte(text), "pack.yaml")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range report.Problems {
				if p.Pointer == test.pointer && strings.Contains(p.Message+p.Hint, test.says) && p.Line > 0 {
					return
				}
			}
			t.Errorf("no problem at %s that says %q: %+v", test.pointer, test.says, report.Problems)
		})
	}
}

// The example of docs/manifests.md is a good one.
func TestFolderExampleOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/manifests.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```yaml\nartifacts:\n  - {name: frames, kind: list")
	example, _, ended := strings.Cut(rest, "```")
	if !ok || !ended {
		t.Fatal("docs/manifests.md shows no folder and no list")
	}
	before, _, _ := strings.Cut(folderManifest, "artifacts:")
	text := before + "artifacts:\n  - {name: frames, kind: list" + example + "result: \"{'n': 1}\"\n"
	text = strings.ReplaceAll(strings.Replace(text, "output: {type: string", "other: {type: string", 1), "outputs.tree", "outputs.site")
	text = strings.Replace(text, ", x-macexec: {path: output}", "", 1)
	compile(t, text)
}
