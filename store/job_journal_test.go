package store

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

// entriesOf reads what JobJournal shows of a job.
func entriesOf(t *testing.T, s *Store, id string) (seqs []uint64, err error) {
	t.Helper()
	err = s.JobJournal(t.Context(), id, func(e jobs.Entry) bool {
		if e.JobID != id {
			t.Errorf("entry %d of job %s came for job %s", e.Seq, e.JobID, id)
		}
		seqs = append(seqs, e.Seq)
		return true
	})
	return seqs, err
}

// G13: whatever becomes of what leads from one entry of a job to the one before, its
// other entries are shown, what is missing is told, and Check names it.
func TestDamagedLinks(t *testing.T) {
	t.Parallel()
	one, two := storetest.JobID(1), storetest.JobID(2)
	relink := func(b *bbolt.Bucket, key []byte, link uint64) error {
		_, record, _ := splitLink(b.Get(key))
		return b.Put(key, withLink(link, bytes.Clone(record)))
	}
	for name, test := range map[string]struct {
		spoil func(jobs, journal *bbolt.Bucket) error
		want  []uint64 // of job one; it has 1, 3, 5, 6, 8
		code  jobs.Code
		told  string // by Check
	}{
		"nothing":                    {func(_, _ *bbolt.Bucket) error { return nil }, []uint64{1, 3, 5, 6, 8}, "", ""},
		"an entry leads elsewhere":   {func(_, j *bbolt.Bucket) error { return relink(j, encodeU64(5), 2) }, []uint64{1, 3, 5, 6, 8}, "", "leads to entry 2 and not to 3"},
		"an entry leads forward":     {func(_, j *bbolt.Bucket) error { return relink(j, encodeU64(5), 6) }, []uint64{1, 3, 5, 6, 8}, "", "leads to entry 6"},
		"an entry leads past others": {func(_, j *bbolt.Bucket) error { return relink(j, encodeU64(8), 3) }, []uint64{1, 3, 6, 8}, "", "leads to entry 3 and not to 5"},
		"an entry lost its link": {func(_, j *bbolt.Bucket) error {
			return j.Put(encodeU64(5), bytes.Clone(j.Get(encodeU64(5))[linkSize:]))
		}, []uint64{1, 3, 5, 6, 8}, "", "is not in job_journal"},
		"an entry is missing":           {func(_, j *bbolt.Bucket) error { return j.Delete(encodeU64(5)) }, []uint64{1, 3}, jobs.CodeRecordDamaged, "entry 5"},
		"the record leads elsewhere":    {func(r, _ *bbolt.Bucket) error { return relink(r, []byte(one), 4) }, []uint64{1, 3, 5, 6, 8}, "", "and not to its newest one, 8"},
		"the record leads beyond":       {func(r, _ *bbolt.Bucket) error { return relink(r, []byte(one), 1<<50) }, []uint64{1, 3, 5, 6, 8}, "", "and not to its newest one, 8"},
		"the record cannot be read":     {func(r, _ *bbolt.Bucket) error { return r.Put([]byte(one), []byte("{")) }, []uint64{1, 3, 5, 6, 8}, "", "damaged"},
		"only the record's JSON is bad": {func(r, _ *bbolt.Bucket) error { return r.Put([]byte(one), withLink(8, []byte("{"))) }, []uint64{1, 3, 5, 6, 8}, "", "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openAt(t, filepath.Join(t.TempDir(), "store.db"))
			note := func(id string) {
				if _, err := s.Update(t.Context(), id, func(*jobs.Job) (jobs.Note, error) { return jobs.Note{Message: "on its way"}, nil }); err != nil {
					t.Fatal(err)
				}
			}
			submit(t, s, 1)
			submit(t, s, 2)
			note(one)
			note(two)
			note(one)
			submitAgain(t, s, 1) // a replay, which changes no record
			note(two)
			note(one)
			edit(t, s, func(tx *bbolt.Tx) error {
				return test.spoil(tx.Bucket([]byte(bucketJobs)), tx.Bucket([]byte(bucketJournal)))
			})
			got, err := entriesOf(t, s, one)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			e, _ := errors.AsType[*jobs.Error](err)
			if (err != nil) != (test.code != "") || err != nil && e.Code != test.code {
				t.Errorf("got %v", err)
			}
			if got, err := entriesOf(t, s, two); err != nil || fmt.Sprint(got) != "[2 4 7]" {
				t.Errorf("the other job: %v, %v", got, err)
			}
			_ = s.Close()
			problems, err := Check(s.path)
			if err != nil || (len(problems) > 0) != (test.told != "") || !strings.Contains(strings.Join(problems, "\n"), test.told) {
				t.Errorf("Check: %q, %v", problems, err)
			}
		})
	}
}

func submitAgain(t *testing.T, s *Store, n int) {
	t.Helper()
	got, err := s.Submit(t.Context(), storetest.Submission(storetest.NewJob(n)))
	if err != nil || got.Outcome != jobs.SubmitReplayed {
		t.Fatalf("%+v, %v", got, err)
	}
}
