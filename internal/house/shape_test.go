package house_test

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxLines is where a file is asking to be two.
const maxLines = 600

func TestFilesStaySmall(t *testing.T) {
	t.Parallel()
	for _, f := range product(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines; above %d it is asking to be two", f.path, f.lines, maxLines)
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	t.Parallel()
	comments := map[string][]string{}
	for _, f := range tree(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		if f.ast.Doc == nil {
			continue
		}
		comments[f.dir] = append(comments[f.dir], f.path)
		text := f.ast.Doc.Text()
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "Command " + path.Base(f.dir) + " "
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment does not begin with %q", f.path, want)
		}
	}
	for dir, files := range comments {
		if len(files) != 1 {
			t.Errorf("%s has %d package comments, want 1: %v", dir, len(files), files)
		}
	}
}

func TestNoPackageIsADrawer(t *testing.T) {
	t.Parallel()
	drawers := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib", "pkg"}
	for _, f := range tree(t) {
		if name := path.Base(f.dir); slices.Contains(drawers, name) || slices.Contains(drawers, f.ast.Name.Name) {
			t.Errorf("%s: a package is named after what it does, not %q", f.path, name)
		}
	}
}

func TestNothingRunsBeforeMain(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		if f.generated {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init hides who wires what", f.at(fn.Pos()))
			}
		}
	}
}

// packageVariables lists the package-level variables that are allowed besides
// errors, embedded files, compiled patterns and interface checks, each with its
// reason.
func packageVariables() map[string]string {
	return map[string]string{
		"executor/files.magics": "the table of magic numbers, looked up for every file; read only",
	}
}

func TestPackagesHoldNoState(t *testing.T) {
	t.Parallel()
	allowed := packageVariables()
	for _, f := range product(t) {
		for _, d := range f.ast.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.VAR {
				continue
			}
			for _, s := range decl.Specs {
				spec, ok := s.(*ast.ValueSpec)
				if !ok || isFixed(decl, spec) {
					continue
				}
				for _, name := range spec.Names {
					full := f.dir + "." + name.Name
					if _, ok := allowed[full]; ok {
						delete(allowed, full)
						continue
					}
					t.Errorf("%s: package-level variable %s; make it a function, a field or a constant", f.at(name.Pos()), name.Name)
				}
			}
		}
	}
	for name := range allowed {
		t.Errorf("%s is allowed but no longer exists", name)
	}
}

// isFixed reports whether a variable is one in name only.
func isFixed(decl *ast.GenDecl, spec *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{decl.Doc, spec.Doc} {
		if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }) {
			return true
		}
	}
	blank := !slices.ContainsFunc(spec.Names, func(n *ast.Ident) bool { return n.Name != "_" })
	if blank {
		return true
	}
	if len(spec.Values) != len(spec.Names) {
		return false
	}
	for i, name := range spec.Names {
		isError := strings.HasPrefix(name.Name, "err") || strings.HasPrefix(name.Name, "Err")
		if !isError && !isCallOf(spec.Values[i], "regexp.MustCompile") {
			return false
		}
	}
	return true
}

// isCallOf reports whether e calls one of the functions, written package.Name.
func isCallOf(e ast.Expr, functions ...string) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && slices.Contains(functions, qualified(call.Fun))
}

// qualified returns "package.Name" for such an expression, else "".
func qualified(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}

func TestPureRoomsHaveNoClock(t *testing.T) {
	t.Parallel()
	clock := []string{"time.Now", "time.Since", "time.Until", "time.After", "time.NewTimer", "time.NewTicker", "time.Sleep"}
	for _, f := range product(t) {
		if r, _ := roomOf(f.dir); !slices.Contains(pureRooms(), r.dir) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && slices.Contains(clock, qualified(call.Fun)) {
				t.Errorf("%s: %s; here time comes as an argument", f.at(call.Pos()), qualified(call.Fun))
			}
			return true
		})
	}
}
