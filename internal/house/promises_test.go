package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryPromiseIsHeldByATest compares docs/promises.md with the tests that name
// a promise: none is held in silence, and none is said to be held when no test would
// miss it.
func TestEveryPromiseIsHeldByATest(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "promises.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`\bG[1-9][0-9]?\b`)
	held := map[string]string{}
	err = walk(func(file string, data []byte) error {
		if strings.HasSuffix(file, "_test.go") && !strings.HasSuffix(file, "/promises_test.go") {
			for _, g := range name.FindAllString(string(data), -1) {
				held[g] = file
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const promises = 15
	items := regexp.MustCompile(`(?m)^- \*\*(G[0-9]+)\*\*( \*no test yet\*)?`).FindAllStringSubmatch(string(page), -1)
	if len(items) != promises {
		t.Errorf("docs/promises.md lists %d promises, want %d", len(items), promises)
	}
	for _, item := range items {
		g, marked := item[1], item[2] != ""
		switch {
		case !marked && held[g] == "":
			t.Errorf("no test names %s; write one, or say *no test yet* in docs/promises.md", g)
		case marked && held[g] != "":
			t.Errorf("%s names %s, but docs/promises.md says that no test does", held[g], g)
		}
	}
}
