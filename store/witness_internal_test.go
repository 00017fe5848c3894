package store

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store/storetest"
)

func FuzzParseWitness(f *testing.F) {
	good, err := json.Marshal(witness{Version: witnessVersion, HostID: "abcdefgh", Hash: strings.Repeat("0f", 32), Seq: 7})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), "", "{}", "null", `{"version":1}`, string(good[:30]), strings.Replace(string(good), `"version":1`, `"version":2`, 1)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		w, err := parseWitness(raw)
		if err != nil {
			return
		}
		if w.Version != witnessVersion || !validHostID(w.HostID) || len(w.Hash) != 64 {
			t.Errorf("%q is taken for %+v", raw, w)
		}
	})
}

// G13: a store whose journal no longer has the entry that its witness tells of cannot be
// known by it. One of which that entry only cannot be read is, by the entry behind it.
func TestG13WhatTheWitnessTellsOfIsGone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(t *testing.T, s *Store, w *witness)
		want  jobs.Code
	}{
		"dropped": {func(t *testing.T, s *Store, _ *witness) {
			for range 2 {
				if n, err := s.DropJournal(t.Context(), storetest.Time(), 1); err != nil || n != segmentEntries {
					t.Fatal(n, err)
				}
			}
		}, jobs.CodeStoreReplaced},
		"damaged": {func(t *testing.T, s *Store, w *witness) {
			edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketJournal)).Put(encodeU64(w.Seq), []byte("{")) })
		}, ""},
		"damaged, and of another history": {func(t *testing.T, s *Store, w *witness) {
			edit(t, s, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketJournal)).Put(encodeU64(w.Seq), []byte("{")) })
			w.Hash = strings.Repeat("0", len(w.Hash))
		}, jobs.CodeStoreReplaced},
		"the newest that was dropped": {func(t *testing.T, s *Store, w *witness) {
			if n, err := s.DropJournal(t.Context(), storetest.Time(), 1); err != nil || n != segmentEntries {
				t.Fatal(n, err)
			}
			err := s.view(t.Context(), func(tx *bbolt.Tx) error {
				anchor, _ := readAnchor(tx)
				w.Seq, w.Hash = anchor.seq, hex.EncodeToString(anchor.hash[:])
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openNew(t)
			submit(t, s, 0)
			_ = s.Close()
			w, err := readWitness(s.path)
			if err != nil || w == nil || w.Seq != 1 {
				t.Fatal(w, err)
			}
			s = openAt(t, s.path)
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					for range 2*segmentEntries/16 + 1 {
						if err := s.Append(t.Context(), jobs.Entry{Kind: jobs.EntryHost, Message: "more"}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			test.spoil(t, s, w)
			_ = s.Close()
			if err := writeWitness(s.path, *w); err != nil {
				t.Fatal(err)
			}
			again, err := Open(t.Context(), Options{Path: s.path})
			wantCode(t, err, test.want)
			if err == nil {
				_ = again.Close()
			}
		})
	}
}
