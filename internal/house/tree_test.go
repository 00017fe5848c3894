package house_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// modulePath is the module that the house stands in.
const modulePath = "github.com/macexec/macexec"

// root is the top of the repository, seen from this package.
const root = "../.."

var update = flag.Bool("update", false, "rewrite generated parts instead of comparing them")

// source is one Go file, whichever system it is for.
type source struct {
	dir, path string // relative to root, with slashes
	ast       *ast.File
	fset      *token.FileSet
	lines     int
	test      bool // never part of a product's binary
	generated bool
}

// at says where something stands, for a message.
func (s *source) at(pos token.Pos) string {
	p := s.fset.Position(pos)
	return s.path + ":" + strings.TrimPrefix(p.String(), p.Filename+":")
}

// imports returns the paths that the file imports.
func (s *source) imports() []string {
	var paths []string
	for _, i := range s.ast.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

var parseTree = sync.OnceValues(func() ([]*source, error) {
	var files []*source
	fset := token.NewFileSet()
	err := walk(func(name string, data []byte) error {
		if !strings.HasSuffix(name, ".go") || under(name, "tools") { // tools are modules of their own
			return nil
		}
		parsed, err := parser.ParseFile(fset, name, data, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		files = append(files, &source{
			dir: dir, path: name, ast: parsed, fset: fset,
			lines:     bytes.Count(data, []byte("\n")),
			test:      strings.HasSuffix(name, "_test.go") || strings.HasSuffix(path.Base(dir), "test") || under(dir, "internal"),
			generated: ast.IsGenerated(parsed),
		})
		return nil
	})
	return files, err
})

// tree returns every Go file of the repository.
func tree(t *testing.T) []*source {
	t.Helper()
	files, err := parseTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("found no Go file")
	}
	return files
}

// product returns the files that people wrote and that can become part of a binary.
func product(t *testing.T) []*source {
	t.Helper()
	var files []*source
	for _, f := range tree(t) {
		if !f.test && !f.generated {
			files = append(files, f)
		}
	}
	return files
}

// walk visits every file that is not hidden, not built and not a room's own test data.
func walk(visit func(name string, data []byte) error) error {
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			hidden := rel != "." && strings.HasPrefix(entry.Name(), ".")
			if hidden || rel == "bin" || rel == "dist" || entry.Name() == "node_modules" || (entry.Name() == "testdata" && rel != "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return visit(rel, data)
	})
}
