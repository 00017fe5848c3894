package store

import (
	"bytes"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// The folders of jobs tell what a store has forgotten. A job is on stable storage before
// it gets a folder (promise G3), and leaves a tombstone when its record goes, which is
// before its folder. So a store that knows nothing of a job with a folder is not the one
// that the job was accepted with, or an earlier state of it, whatever its witness says.

// namedStrangers is how many of the jobs that a store does not know are named.
const namedStrangers = 3

// strangers returns those of the named folders that are of jobs of which the store has
// neither a record nor a tombstone. Names that are no ids of jobs are left out. Where the
// store is damaged a job counts as known: others are to refuse it for that.
func strangers(tx *bbolt.Tx, names []string) []string {
	m := merge{names: slices.DeleteFunc(slices.Clone(names), func(name string) bool { return hostOf(name) == "" })}
	slices.Sort(m.names)
	m.known = make([]bool, len(m.names))
	// The records take many pages; this bucket has the ids one behind the other. It is for
	// speed only: what it has not is looked for among the records.
	if order := tx.Bucket([]byte(bucketOrder)); order != nil && len(m.names) > 0 {
		_ = guarded(func() error {
			return order.ForEach(func(_, raw []byte) error {
				if _, id, ok := decodeOrder(raw); ok {
					m.see(id)
				}
				return nil
			})
		})
	}
	left := m.unseen()
	records := tx.Bucket([]byte(bucketJobs))
	left = slices.DeleteFunc(left, func(id string) bool {
		known := false
		err := guarded(func() error { known = has(records, []byte(id)); return nil })
		return known || err != nil
	})
	if len(left) == 0 {
		return nil
	}
	buried := map[string]bool{}
	if guarded(func() error { return buriedJobs(tx, func(id string) { buried[id] = true }, left) }) != nil {
		return nil
	}
	return slices.DeleteFunc(left, func(id string) bool { return buried[id] })
}

// buriedJobs shows those of some jobs, in the order of their ids, of which there is a tombstone.
func buriedJobs(tx *bbolt.Tx, show func(id string), of []string) error {
	look := func(id string) {
		if _, found := slices.BinarySearch(of, id); found {
			show(id)
		}
	}
	hostID := string(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaHostID)))
	if tombstones := tx.Bucket([]byte(bucketTombstones)); tombstones != nil {
		err := tombstones.ForEach(func(_, raw []byte) error {
			if t, ok := decodeTombstone(raw, hostID); ok {
				look(t.jobID)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// Before there was that bucket, the record of the key said that its job is gone.
	kind := []byte(`"` + string(jobs.KeyTombstone) + `"`)
	return tx.Bucket([]byte(bucketKeys)).ForEach(func(_, raw []byte) error {
		if !bytes.Contains(raw, kind) {
			return nil
		}
		var record jobs.KeyRecord
		if decodeInto("the record of a key", raw, &record) == nil && record.Kind == jobs.KeyTombstone {
			look(record.JobID)
		}
		return nil
	})
}

// hostOf returns the host that the id of a job names; empty: it is no id of a job.
func hostOf(id string) string {
	text, host, _ := strings.Cut(id, "-")
	if len(text) != ulid.EncodedSize || text[0] > '7' || strings.Trim(text, ulidAlphabet) != "" || !validHostID(host) {
		return ""
	}
	return host
}

const ulidAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// merge finds out which of some names, in their order, are among ids that come nearly in
// theirs.
type merge struct {
	names []string
	known []bool
	at    int // of the name that is expected next
}

func (m *merge) see(id []byte) {
	for m.at < len(m.names) && m.names[m.at] < string(id) {
		m.at++
	}
	switch {
	case m.at < len(m.names) && m.names[m.at] == string(id):
		m.known[m.at] = true
		m.at++
	case m.at > 0 && string(id) <= m.names[m.at-1]:
		if i, found := slices.BinarySearch(m.names, string(id)); found {
			m.known[i] = true
		}
	}
}

func (m *merge) unseen() (list []string) {
	for i, name := range m.names {
		if !m.known[i] {
			list = append(list, name)
		}
	}
	return list
}

// forgetful refuses a store that knows nothing of jobs that were started here.
func forgetful(tx *bbolt.Tx, o Options) *jobs.Error {
	if len(o.Jobs) == 0 || o.Started == nil {
		return nil
	}
	hostID := string(tx.Bucket([]byte(bucketMeta)).Get([]byte(metaHostID)))
	var named []string
	code := jobs.CodeStoreReplaced
	for _, id := range strangers(tx, o.Jobs) {
		if !o.Started(id) {
			continue
		}
		if hostOf(id) == hostID {
			code = jobs.CodeStoreOlder
		}
		if named = append(named, id); len(named) > namedStrangers {
			named[namedStrangers] = "others"
			break
		}
	}
	if len(named) == 0 {
		return nil
	}
	list := strings.Join(named, ", ")
	return jobs.Errorf(code, "it knows nothing of jobs that were started here, whose folders are there: %s; so it is an earlier state of the store that was here, or another host's", list).
		With("jobs", list)
}

// buryStrangers leaves a tombstone of each job that an adopted store does not know, in a place that
// no key has, so that the next start knows that somebody has seen that.
func (b *batch) buryStrangers(ids []string) error {
	for _, id := range ids {
		if err := b.bucket(bucketTombstones).Put(tombstoneKey(place(strangerNamespace, id)), tombstone{jobID: id}.encode(b.s.hostID)); err != nil {
			return err
		}
	}
	return nil
}

const strangerNamespace = "forgotten-job"
