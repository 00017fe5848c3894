package house_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGeneratedCodeIsFresh compares the .proto files, what generates from them,
// and the generated Go with the digests that `make generate` wrote down last: who
// changes one side without the other is told, in milliseconds and without the
// generators. `make verify` runs the generators too.
func TestGeneratedCodeIsFresh(t *testing.T) {
	t.Parallel()
	var sums []string
	err := walk(func(name string, data []byte) error {
		ext := path.Ext(name)
		input := ext == ".proto" || name == "buf.gen.yaml" || name == "tools/gen/go.mod"
		if input || strings.HasSuffix(name, ".pb.go") {
			sums = append(sums, fmt.Sprintf("%x  %s", sha256.Sum256(data), name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(sums, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	got := strings.Join(sums, "\n") + "\n"
	name := filepath.Join("testdata", "generated.sum")
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("proto changed since the last make generate (-then +now):\n%s", diff)
	}
}
