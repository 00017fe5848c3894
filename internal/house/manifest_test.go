package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/macexec/macexec/schemas"
)

// TestManifestExampleIsClean holds that the example in docs/manifests.md is a tool
// about which there is nothing to say.
func TestManifestExampleIsClean(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "manifests.md"))
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(tool: .*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("the page shows no manifest")
	}
	report, err := schemas.Lint(example[1], "example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range report.Problems {
		t.Errorf("line %d: %s: %s", problem.Line, problem.Severity, problem.Message)
	}
	if !report.OK {
		t.Error("the example cannot be loaded")
	}
}
