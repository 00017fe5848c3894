package schemas_test

import (
	"testing"

	"github.com/macexec/macexec/schemas"
)

func openShipped(t *testing.T) *schemas.Registry {
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

func TestShippedToolsLoad(t *testing.T) {
	t.Parallel()
	for _, tool := range openShipped(t).Tools() {
		t.Log(tool.Manifest.Tool, tool.Version, tool.Digest)
	}
}
