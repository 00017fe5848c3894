package house_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listed is what `go list` tells about a package.
type listed struct {
	ImportPath string
	Dir        string
	Export     string // file with the compiled types
	GoFiles    []string
	Imports    []string
}

// TestOnlyTransitionsWriteAJobsState holds that the transition table is the only
// way from one state to another (promise G5). It sees types, so that a State of
// something else does not disturb it.
func TestOnlyTransitionsWriteAJobsState(t *testing.T) {
	t.Parallel()
	const jobsPath = modulePath + "/jobs"
	packages := goList(t)
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})

	writes := 0 // of State in its one right place, so that the test cannot pass blind
	for _, p := range packages {
		if p.ImportPath != jobsPath && !slices.Contains(p.Imports, jobsPath) || strings.HasSuffix(p.ImportPath, "test") || under(p.ImportPath, modulePath+"/internal") {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
		if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		isJob := func(typ types.Type) bool {
			if ptr, ok := types.Unalias(typ).(*types.Pointer); ok {
				typ = ptr.Elem()
			}
			named, ok := types.Unalias(typ).(*types.Named)
			return ok && named.Obj().Name() == "Job" && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == jobsPath
		}
		isState := func(e ast.Expr) bool {
			sel, ok := ast.Unparen(e).(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "State" {
				return false
			}
			selection := info.Selections[sel]
			return selection != nil && isJob(owner(selection))
		}
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				var at []token.Pos
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						if isState(left) {
							at = append(at, left.Pos())
						}
					}
				case *ast.UnaryExpr:
					if n.Op == token.AND && isState(n.X) {
						at = append(at, n.Pos())
					}
				case *ast.CompositeLit:
					if !isJob(info.TypeOf(n)) {
						return true
					}
					for _, element := range n.Elts {
						pair, ok := element.(*ast.KeyValueExpr)
						if !ok {
							at = append(at, element.Pos())
						} else if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "State" {
							at = append(at, key.Pos())
						}
					}
				}
				for _, pos := range at {
					where := fset.Position(pos)
					if p.ImportPath == jobsPath && filepath.Base(where.Filename) == "transition.go" {
						writes++
						continue
					}
					t.Errorf("%s writes the state of a job; only the methods of jobs/transition.go do", where)
				}
				return true
			})
		}
	}
	if writes != 1 {
		t.Errorf("jobs/transition.go writes a job's state in %d places, want exactly one", writes)
	}
}

// owner returns the type that a selected field stands in, which is not the
// receiver when the field is promoted.
func owner(selection *types.Selection) types.Type {
	typ := selection.Recv()
	path := selection.Index()
	for _, i := range path[:len(path)-1] {
		if ptr, ok := types.Unalias(typ).(*types.Pointer); ok {
			typ = ptr.Elem()
		}
		fields, ok := typ.Underlying().(*types.Struct)
		if !ok {
			return typ
		}
		typ = fields.Field(i).Type()
	}
	return typ
}

// goList returns every package of the module and everything they depend on.
func goList(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var packages []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
