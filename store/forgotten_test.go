package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"
	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
)

// idAt is the id of a job of a host, n-th in their order.
func idAt(n int, host string) string {
	var u ulid.ULID
	_ = u.SetTime(uint64(1_700_000_000_000 + n))
	return strings.ToLower(u.String()) + "-" + host
}

// TestStrangers: a job with a folder is known by its place in the order, its record or its
// tombstone, of any version, and whichever order the ids were given in.
func TestStrangers(t *testing.T) {
	t.Parallel()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "s.db"), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const host = "abcdefgh"
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := writeFirstSchema(tx, time.Now()); err != nil {
			return err
		}
		put := func(bucket string, key, value []byte) {
			if err := tx.Bucket([]byte(bucket)).Put(key, value); err != nil {
				t.Error(err)
			}
		}
		put(bucketMeta, []byte(metaHostID), []byte(host))
		for seq, n := range []int{4, 1, 90, 2, 7, 3} { // of a clock that was set to and fro
			put(bucketOrder, encodeU64(uint64(seq)), append(encodeU64(0), idAt(n, host)...))
		}
		put(bucketJobs, []byte(idAt(5, host)), []byte("whatever"))
		put(bucketTombstones, tombstoneKey(place("a")), tombstone{jobID: idAt(6, host)}.encode(host))
		put(bucketTombstones, tombstoneKey(place("b")), tombstone{jobID: idAt(6, "hgfedcba")}.encode(host))
		old, err := encodeRecord(jobs.KeyRecord{Kind: jobs.KeyTombstone, JobID: idAt(8, host)})
		put(bucketKeys, place("c"), old)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for n := range 10 {
		names = append(names, idAt(n, host))
	}
	names = append(names, idAt(90, host), idAt(6, "hgfedcba"), idAt(1, "hgfedcba"), "stray", strings.ToUpper(idAt(11, host)), idAt(11, "x"), idAt(12, host)+"-")
	want := []string{idAt(0, host), idAt(1, "hgfedcba"), idAt(9, host)}
	if err := db.View(func(tx *bbolt.Tx) error {
		if diff := cmp.Diff(want, strangers(tx, names)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkStrangers is what a start asks of a store with many jobs.
func BenchmarkStrangers(b *testing.B) {
	for _, records := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(records), func(b *testing.B) {
			const host = "abcdefgh"
			db, err := bbolt.Open(filepath.Join(b.TempDir(), "s.db"), 0o600, &bbolt.Options{NoSync: true})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			var names []string
			err = db.Update(func(tx *bbolt.Tx) error {
				if err := writeFirstSchema(tx, time.Now()); err != nil {
					return err
				}
				order := tx.Bucket([]byte(bucketOrder))
				order.FillPercent = fillAppended
				for n := range records {
					id := idAt(n, host)
					if n%(records/100_000) == 0 {
						names = append(names, id)
					}
					if err := order.Put(encodeU64(uint64(n)), append(encodeU64(0), id...)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			slices.Sort(names)
			for b.Loop() {
				_ = db.View(func(tx *bbolt.Tx) error {
					if s := strangers(tx, names); len(s) > 0 {
						b.Fatal(s)
					}
					return nil
				})
			}
		})
	}
}
