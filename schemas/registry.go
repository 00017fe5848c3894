package schemas

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed tools/*.yaml
var shippedFiles embed.FS

// Compile checks and compiles one manifest that is not in a registry, such as one
// that a job was accepted with before an upgrade.
func Compile(raw []byte, source string) (*Tool, error) {
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	tool, issues, _ := l.load(raw, source)
	if tool == nil {
		return nil, fmt.Errorf("the manifest is not usable: %s", issues[0].message)
	}
	return tool, nil
}

// Options say where a registry's tools come from.
type Options struct {
	// Dir is the folder of the operator's manifests, *.yaml; empty or missing: none.
	Dir string
}

// Registry holds the tools of a host: the shipped ones and the operator's. It
// never changes; open another to see changed files.
type Registry struct {
	tools    []*Tool // by name, newest version first
	problems []Problem
}

// Problem is a manifest that is not offered, and why.
type Problem struct {
	File     string
	Findings []Finding
}

// Open loads every manifest. A bad one disables only itself: see Problems. The
// error is for what keeps the registry itself from being read.
func Open(o Options) (*Registry, error) {
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	r := &Registry{}
	shipped, err := shippedFiles.ReadDir("tools")
	if err != nil {
		return nil, fmt.Errorf("read the shipped manifests: %w", err)
	}
	for _, e := range shipped {
		raw, err := shippedFiles.ReadFile("tools/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read the shipped manifests: %w", err)
		}
		r.add(l, raw, e.Name(), sourceShipped)
	}
	if o.Dir != "" {
		if err := r.addFolder(l, o.Dir); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(r.tools, func(a, b *Tool) int {
		return cmp.Or(strings.Compare(a.Manifest.Tool, b.Manifest.Tool), strings.Compare(b.Version, a.Version))
	})
	return r, nil
}

const sourceShipped = "shipped"

func (r *Registry) addFolder(l *loader, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the operator's manifests: %w", err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); (ext != ".yaml" && ext != ".yml") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		raw, err := readManifestFile(path)
		if err != nil {
			r.problem(path, Finding{Keyword: "file", Message: err.Error()})
			continue
		}
		r.add(l, raw, path, path)
	}
	return nil
}

// readManifestFile reads a regular file of a bounded size.
func readManifestFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than is taken, so that a longer file is refused, not cut.
	return io.ReadAll(io.LimitReader(f, int64(manifestLimits().Bytes)+1))
}

func (r *Registry) add(l *loader, raw []byte, file, source string) {
	t, issues, lines := l.load(raw, source)
	if t == nil {
		var findings []Finding
		for _, i := range issues {
			if i.severity != SeverityError {
				continue
			}
			line := i.line
			if lines != nil {
				line = lines.line(i.pointer)
			}
			message := atLine(line, i.message)
			findings = append(findings, Finding{Pointer: i.pointer, Keyword: i.rule, Message: message, Hint: i.hint})
		}
		r.problem(file, findings...)
		return
	}
	if other, taken := r.exact(t.Manifest.Tool, t.Version); taken {
		r.problem(file, Finding{
			Pointer: "/version", Keyword: "version_taken",
			Message: fmt.Sprintf("%s %s is already there (%s)", t.Manifest.Tool, t.Version, other.Source),
			Hint:    "give the changed tool a new version, or another name",
		})
		return
	}
	r.tools = append(r.tools, t)
}

func (r *Registry) problem(file string, findings ...Finding) {
	r.problems = append(r.problems, Problem{File: file, Findings: findings})
}

func (r *Registry) exact(name, version string) (*Tool, bool) {
	i := slices.IndexFunc(r.tools, func(t *Tool) bool { return t.Manifest.Tool == name && t.Version == version })
	if i < 0 {
		return nil, false
	}
	return r.tools[i], true
}

// Tool returns a tool by name and version; an empty version is the newest.
func (r *Registry) Tool(name, version string) (*Tool, bool) {
	if version != "" {
		return r.exact(name, version)
	}
	i := slices.IndexFunc(r.tools, func(t *Tool) bool { return t.Manifest.Tool == name })
	if i < 0 {
		return nil, false
	}
	return r.tools[i], true
}

// Tools returns the newest version of each tool, by name.
func (r *Registry) Tools() []*Tool {
	return slices.CompactFunc(slices.Clone(r.tools), func(a, b *Tool) bool { return a.Manifest.Tool == b.Manifest.Tool })
}

// All returns every version of every tool, by name, newest first.
func (r *Registry) All() []*Tool { return slices.Clone(r.tools) }

// Problems returns the manifests that are not offered.
func (r *Registry) Problems() []Problem { return slices.Clone(r.problems) }
