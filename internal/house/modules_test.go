package house_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRequirementsAreTheImports compares go.mod with what our code imports on any
// system: what is imported is required directly, and what is required directly is
// imported. `make verify` asks `go mod tidy` about the rest, which needs a network.
func TestRequirementsAreTheImports(t *testing.T) {
	t.Parallel()
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{} // module → required directly
	for line := range strings.Lines(string(gomod)) {
		words := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(words) >= 2 && isModule(words[0]) && strings.HasPrefix(words[1], "v") {
			direct[words[0]] = !strings.HasSuffix(strings.TrimSpace(line), "// indirect")
		}
	}
	imported := map[string]bool{}
	for _, f := range tree(t) {
		for _, path := range f.imports() {
			if !isModule(path) || under(path, modulePath) {
				continue
			}
			module := ""
			for m := range direct {
				if under(path, m) && len(m) > len(module) {
					module = m
				}
			}
			if module == "" {
				t.Errorf("%s imports %s, which go.mod does not require", f.path, path)
			}
			imported[module] = true
		}
	}
	for module, isDirect := range direct {
		if isDirect != imported[module] {
			t.Errorf("go.mod: %s is required directly: %t, imported: %t; run go mod tidy", module, isDirect, imported[module])
		}
	}
}
