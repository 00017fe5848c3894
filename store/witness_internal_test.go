package store

import (
	"encoding/json"
	"strings"
	"testing"
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
