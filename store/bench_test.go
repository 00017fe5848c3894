package store_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// callers runs call b.N times from n goroutines at once.
func callers(b *testing.B, n int, call func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := call(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

func benchStore(b *testing.B) *store.Store {
	s, err := store.Open(b.Context(), store.Options{Path: filepath.Join(b.TempDir(), "store.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func BenchmarkSubmit(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			s := benchStore(b)
			callers(b, n, func(i int) error {
				_, err := s.Submit(b.Context(), storetest.Submission(storetest.NewJob(i)))
				return err
			})
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			s := benchStore(b)
			var subs []jobs.Submission
			for i := range 1000 {
				subs = append(subs, storetest.Submission(storetest.NewJob(i)))
				if _, err := s.Submit(b.Context(), subs[i]); err != nil {
					b.Fatal(err)
				}
			}
			callers(b, n, func(i int) error {
				_, err := s.Submit(b.Context(), subs[i%len(subs)])
				return err
			})
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			s := benchStore(b)
			for i := range 1000 {
				if _, err := s.Submit(b.Context(), storetest.Submission(storetest.NewJob(i))); err != nil {
					b.Fatal(err)
				}
			}
			callers(b, n, func(i int) error {
				_, err := s.Update(b.Context(), storetest.JobID(i%1000), func(j *jobs.Job) (jobs.Note, error) {
					j.Message = "on its way"
					return jobs.Note{}, nil
				})
				return err
			})
		})
	}
}
