package engine

import (
	"fmt"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// BenchmarkReplay measures the same call again under its key, without a face.
func BenchmarkReplay(b *testing.B) {
	h := newHost(b, copyTool())
	req := Request{Tool: "copy", Key: "k", Arguments: []byte(`{"output":"made.txt"}`), Purpose: jobs.PurposeProduction}
	r, err := h.Submit(b.Context(), owner(), req)
	if err != nil {
		b.Fatal(err)
	}
	h.await(r.Job.ID, settled)
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if r, err := h.Submit(b.Context(), owner(), req); err != nil || !r.Replayed {
				b.Error(r, err)
				return
			}
		}
	})
}

// BenchmarkSubmit measures new calls that wait for approval, without a face.
func BenchmarkSubmit(b *testing.B) {
	h := newHost(b, manifest("act", "external", "true", plainResult))
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := Request{Tool: "act", Key: newRandomKey(), Arguments: []byte(`{}`), Purpose: jobs.PurposeProduction}
			if _, err := h.Submit(b.Context(), owner(), req); err != nil {
				b.Error(fmt.Errorf("submit: %w", err))
				return
			}
		}
	})
}
