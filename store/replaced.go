package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/macexec/macexec/jobs"
)

// overtakenWhy is what a job is told of that a replaced store knew to be started or ended.
const overtakenWhy = "this job was started or ended before the store was restored, which has forgotten it: the store that was replaced says so"

// overtake marks the jobs of a copy that wait or run, and have outside effects, and of
// which the store that it is to replace does not prove that they were never started: their
// folders, which would tell, may be gone. unread says what of that could not be read.
func (s *Store) overtake(ctx context.Context, replaced *os.File) (ids []string, unread string, err error) {
	open, _, err := s.Open(ctx)
	if err != nil {
		return nil, "", err
	}
	r := replacedStore{waits: map[string]string{}, graves: map[string]string{}, open: map[string]bool{}, verdict: map[string]bool{}}
	for _, j := range open {
		if j.State == jobs.StateUnknown || j.Tool.Effects.LeavesNothing() {
			continue
		}
		place := keyPlace(jobs.Key{Principal: j.Principal, Text: j.Key})
		r.waits[string(place)], r.graves[string(tombstoneKey(place))] = j.ID, j.ID
		r.open[j.ID] = true
		ids = append(ids, j.ID)
	}
	info, err := replaced.Stat()
	if err != nil {
		return nil, err.Error(), nil //nolint:nilerr // it is said, and stops no restore
	}
	head, err := inspectFile(replaced, info.Size())
	if err != nil {
		return nil, err.Error(), nil //nolint:nilerr // it is said, and stops no restore
	}
	w := newPageWalk(replaced, head.current)
	w.each(head.current.root, "", 0, r.row)
	if len(w.problems) > 0 {
		unread = w.problems[0] + more(len(w.problems)-1)
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		used, known := r.verdict[id]
		return !used && (known || unread == "") // nothing of it there at all: it was not of that store
	})
	for _, id := range ids {
		_, err := s.Update(ctx, id, func(j *jobs.Job) (jobs.Note, error) {
			j.Overtaken = overtakenWhy
			return jobs.Note{Message: overtakenWhy}, nil
		})
		if err != nil {
			return nil, unread, err
		}
	}
	return ids, unread, nil
}

// replacedStore is what a store says of jobs that a copy of it finds open.
type replacedStore struct {
	waits, graves map[string]string // the jobs of the copy by the places of their keys and tombstones
	open          map[string]bool
	verdict       map[string]bool // of a job: it was started or ended, or its key is another's
}

func (r *replacedStore) row(bucket string, k, v []byte) {
	switch bucket {
	case bucketTombstones:
		if id := r.graves[string(k)]; id != "" {
			r.verdict[id] = true
		}
	case bucketKeys:
		var record jobs.KeyRecord
		id := r.waits[string(k)]
		if id != "" && (decodeInto("the record of a key", v, &record) != nil || record.Kind != jobs.KeyJob || record.JobID != id) {
			r.verdict[id] = true
		}
	case bucketJobs:
		if id := string(k); r.open[id] {
			job, err := decodeJob(id, v)
			r.verdict[id] = r.verdict[id] || err != nil || startedOrEnded(job)
		}
	}
}

func startedOrEnded(j *jobs.Job) bool {
	last, _ := j.LastAttempt()
	return j.State.Terminal() || j.State == jobs.StateUnknown || j.State == jobs.StateRunning && last.Intent != nil
}

// each shows the rows of all buckets below a page of the tree of buckets, or of one
// bucket, as far as they can be read.
func (w *pageWalk) each(id uint64, bucket string, depth int, show func(bucket string, k, v []byte)) {
	flags, count, b, ok := w.page(id)
	switch {
	case !ok:
	case depth > maxTreeDepth:
		w.problemf("page %d lies too deep", id)
	case flags == pageFlagBranch && count > 0:
		w.children(id, b, count, func(_ []byte, child uint64) { w.each(child, bucket, depth+1, show) })
	case flags == pageFlagLeaf:
		w.eachRow(fmt.Sprintf("page %d", id), b, count, bucket, depth, show)
	default:
		w.problemf("page %d is no page of a tree: flags %#x, %d elements", id, flags, count)
	}
}

func (w *pageWalk) eachRow(name string, b []byte, count int, bucket string, depth int, show func(bucket string, k, v []byte)) {
	w.rows(name, b, count, func(flags uint32, k, v []byte) {
		switch {
		case flags&leafFlagBucket == 0:
			show(bucket, k, v)
		case len(v) < bucketHeaderSize:
			w.problemf("bucket %q is damaged", k)
		case binary.NativeEndian.Uint64(v) != 0:
			w.each(binary.NativeEndian.Uint64(v), string(k), depth+1, show)
		case len(v) < bucketHeaderSize+pageHeaderSize:
			w.problemf("bucket %q is damaged", k)
		default:
			inline := v[bucketHeaderSize:]
			w.eachRow(fmt.Sprintf("bucket %q", k), inline, int(binary.NativeEndian.Uint16(inline[10:])), string(k), depth+1, show)
		}
	})
}
