package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/macexec/macexec/jobs"
)

// encodeRecord writes a record as JSON with its checksum.
func encodeRecord(v any) ([]byte, error) {
	raw, err := encodeJSON(v)
	if err != nil {
		return nil, err
	}
	return withSum(raw), nil
}

// encodeJSON leaves <, > and & as they are, so that a call's arguments come back as they
// were sent.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, jobs.Errorf(jobs.CodeInternal, "a record cannot be written as JSON: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// seqUnset is what encodeJSON makes of a job whose Seq is not known yet. Quotes
// inside a JSON text are escaped, so the first match is the job's own field: only
// two text fields lie before it.
const seqUnset = `,"seq":0,"revision":1,`

// encodeNewJob writes a job that has no Seq yet. withSeq completes it, which
// lets the expensive part happen outside the writer.
func encodeNewJob(j jobs.Job) ([]byte, error) {
	j.Seq, j.Revision = 0, 1
	raw, err := encodeJSON(&j)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(raw, []byte(seqUnset)) {
		return nil, jobs.Errorf(jobs.CodeInternal, "the JSON of a job has no place for its seq")
	}
	return raw, nil
}

// withSeq returns the record of what encodeNewJob wrote, with the job's Seq in place and
// a link to its first entry.
func withSeq(raw []byte, seq, entry uint64) []byte {
	at := bytes.Index(raw, []byte(seqUnset)) + len(`,"seq":`)
	record := append(make([]byte, 0, len(raw)+20+sumSize), raw[:at]...)
	record = strconv.AppendUint(record, seq, 10)
	return withLink(entry, withSum(append(record, raw[at+1:]...)))
}

// decodeJob reads the record stored under an id.
func decodeJob(id string, raw []byte) (*jobs.Job, error) {
	j := new(jobs.Job)
	_, record, _ := splitLink(raw)
	err := checkSum(record)
	if err == nil {
		err = json.Unmarshal(record, j)
	}
	if err != nil {
		return nil, damaged("the record of job "+id, err.Error()).WithJob(id)
	}
	if j.ID != id {
		return nil, damaged("the record of job "+id, "it says it is job "+j.ID).WithJob(id)
	}
	return j, nil
}

// decodeInto reads any other record; what names it in the error.
func decodeInto(what string, raw []byte, v any) error {
	err := checkSum(raw)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return damaged(what, err.Error())
	}
	return nil
}

func damaged(what, why string) *jobs.Error {
	return jobs.Errorf(jobs.CodeRecordDamaged, "%s is damaged and is kept as it is: %s", what, why)
}

// wholeManifest holds the text of a manifest against its digest, which stands for it in
// the record of a job and in what a person has approved (G8).
func wholeManifest(digest string, text []byte) error {
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != digest {
		return damaged("manifest "+digest, fmt.Sprintf("its text has the digest %x", sum))
	}
	return nil
}

// The end of an entry's JSON. What is hashed is the JSON without the hash field,
// which is the last one.
const (
	entryHashUnset = `,"hash":""}`
	entryHashStart = `,"hash":"`
	entryHashEnd   = `"}`
)

// sealEntry links an entry behind prev and returns its JSON. json.Marshal with its
// defaults makes the hashed text, so whoever has the Entry can repeat it.
func sealEntry(e *jobs.Entry, prev chainHead) ([]byte, chainHead, error) {
	e.Seq = prev.seq + 1
	e.Prev = hex.EncodeToString(prev.hash[:])
	e.Hash = ""
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, prev, jobs.Errorf(jobs.CodeInternal, "a journal entry cannot be written as JSON: %w", err)
	}
	body, ok := bytes.CutSuffix(raw, []byte(entryHashUnset))
	if !ok {
		return nil, prev, jobs.Errorf(jobs.CodeInternal, "the JSON of a journal entry does not end with its hash")
	}
	head := chainHead{seq: e.Seq, hash: hashEntryBody(body)}
	e.Hash = hex.EncodeToString(head.hash[:])
	raw = append(raw[:len(body)], entryHashStart...)
	raw = append(raw, e.Hash...)
	return append(raw, entryHashEnd...), head, nil
}

func hashEntryBody(body []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(body)
	h.Write([]byte("}"))
	return [sha256.Size]byte(h.Sum(nil))
}

// checkEntry says what is wrong with a stored entry, "" if nothing. prev is the
// hash of the entry before, "" if that is not known.
func checkEntry(raw []byte, seq uint64, prev string) (hash, problem string) {
	_, raw, _ = splitLink(raw)
	const tail = len(entryHashStart) + 2*sha256.Size + len(entryHashEnd)
	var e jobs.Entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return "", err.Error()
	}
	if len(raw) < tail {
		return "", "it has no hash"
	}
	body, end := raw[:len(raw)-tail], raw[len(raw)-tail:]
	sum := hashEntryBody(body)
	switch {
	case string(end) != entryHashStart+e.Hash+entryHashEnd:
		return e.Hash, "it does not end with its hash"
	case e.Seq != seq:
		return e.Hash, "it has another seq"
	case hex.EncodeToString(sum[:]) != e.Hash:
		return e.Hash, "its hash does not fit"
	case prev != "" && e.Prev != prev:
		return e.Hash, "it does not follow the entry before"
	}
	return e.Hash, ""
}
