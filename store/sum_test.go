package store

import (
	"bytes"
	"testing"

	"github.com/macexec/macexec/jobs"
)

// G13: no bit of a record can flip without its being seen: whatever of it is believed
// says what was written.
func TestG13NoFlippedBitIsBelieved(t *testing.T) {
	t.Parallel()
	record := jobs.KeyRecord{Key: jobs.Key{Principal: "owner", Text: "k"}, Kind: jobs.KeyJob, Fingerprint: "v1:0123", JobID: "j"}
	raw, err := encodeRecord(record)
	if err != nil {
		t.Fatal(err)
	}
	believed := 0
	for bit := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[bit/8] ^= 1 << (bit % 8)
		var got jobs.KeyRecord
		if decodeInto("it", flipped, &got) != nil {
			continue
		}
		if believed++; got != record {
			t.Errorf("bit %d: %s is taken for %+v", bit, flipped, got)
		}
	}
	if believed >= sumSize*8 {
		t.Errorf("%d flips of %d go unseen", believed, len(raw)*8)
	}
	if plain := withoutSum(raw); bytes.Contains(plain, []byte("crc32c")) {
		t.Errorf("%s", plain)
	}
	old, err := encodeJSON(record)
	if err != nil {
		t.Fatal(err)
	}
	var got jobs.KeyRecord
	if err := decodeInto("it", old, &got); err != nil || got != record || !bytes.Equal(old, withoutSum(raw)) {
		t.Errorf("one that an older macexec wrote: %+v, %v", got, err)
	}
}

func FuzzSum(f *testing.F) {
	for _, seed := range []string{"", "{}", "null", `{"a":1}`, `{"a":1,"crc32c":"00000000"}`, string(withSum([]byte(`{"a":1}`))), sumStart + "00000000" + sumEnd} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_ = checkSum(raw)
		_ = withoutSum(raw)
		if len(raw) < 2 {
			return
		}
		if summed := withSum(bytes.Clone(raw)); checkSum(summed) != nil {
			t.Errorf("%q is not its own", summed)
		}
	})
}
