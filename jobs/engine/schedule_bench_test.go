package engine

import (
	"fmt"
	"testing"
	"time"
)

// benchQueue is a scheduler with 10,000 waiting jobs of five principals, of which one
// in ten waits for a lock.
func benchQueue(b *testing.B, principals int) *schedule {
	b.Helper()
	s := newSchedule(map[string]int{"x": 2}, 2)
	for i := range 10_000 {
		s.at = s.at.Add(time.Millisecond)
		j := s.job(fmt.Sprint("p", i%principals), "x", i%21-10)
		if i%10 == 0 {
			j.claims = addClaim(nil, claim{key: "path", mode: exclusive, name: "a"})
		}
		s.submit(j)
	}
	s.started()
	return s
}

// BenchmarkSchedulerTurn measures one job that ends, the next one that starts, and a
// new one, with 10,000 jobs in the queue.
func BenchmarkSchedulerTurn(b *testing.B) {
	for _, principals := range []int{1, 5, 1000} {
		b.Run(fmt.Sprint(principals, " principals"), func(b *testing.B) {
			s := benchQueue(b, principals)
			b.ReportAllocs()
			for b.Loop() {
				s.at = s.at.Add(time.Millisecond)
				s.submit(s.job(s.end(0).principal, "x", 0))
				s.started()
			}
		})
	}
}

// BenchmarkSchedulerWaiting measures what one job waits for, with 10,000 in the queue.
func BenchmarkSchedulerWaiting(b *testing.B) {
	for _, principals := range []int{1, 5, 1000} {
		b.Run(fmt.Sprint(principals, " principals"), func(b *testing.B) {
			s := benchQueue(b, principals)
			var ids []string
			for id := range s.turns {
				ids = append(ids, id)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if s.waiting(ids[n%len(ids)]) == nil {
					b.Fatal(ids[n%len(ids)])
				}
				n++
			}
		})
	}
}

// BenchmarkSchedulerOnePath measures 10,000 jobs that all write one path, from the
// first to the last.
func BenchmarkSchedulerOnePath(b *testing.B) {
	for b.Loop() {
		s := newSchedule(map[string]int{"x": 2}, 2)
		for i := range 10_000 {
			j := s.job(fmt.Sprint("p", i%5), "x", 0)
			j.claims = addClaim(nil, claim{key: "path", mode: exclusive, name: "a"})
			s.submit(j)
		}
		for range 10_000 {
			if s.started(); len(s.running) != 1 {
				b.Fatalf("%d run at once", len(s.running))
			}
			s.end(0)
		}
	}
}
