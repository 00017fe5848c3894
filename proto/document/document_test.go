package document_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func TestMarshal(t *testing.T) {
	t.Parallel()
	at := timestamppb.New(time.Date(2026, 11, 1, 12, 0, 0, 500_000_000, time.FixedZone("", 3600)))
	cases := map[string]struct {
		in   proto.Message
		want string
	}{
		"zero values are present": {&macexecv1.Slot{}, `{"class":"","size":0,"used":0}`},
		"an empty message":        {&macexecv1.GetHostRequest{}, `{}`},
		"empty lists are present, unset messages are not": {
			&macexecv1.Check{},
			`{"fingerprint":"","programs":[],"publishes":[],"warnings":[]}`,
		},
		"numbers keep their text": {
			&macexecv1.Call{Arguments: []byte(` {"a" : 9007199254740993, "b": [1.0, 1e0, 0.10]} `)},
			`{"tool":"","tool_version":"","arguments":{"a":9007199254740993,"b":[1.0,1e0,0.10]},"purpose":""}`,
		},
		"text that is not JSON is a string": {
			&macexecv1.Call{Arguments: []byte(`{"a":`), Purpose: macexecv1.Purpose_PURPOSE_PREVIEW},
			`{"tool":"","tool_version":"","arguments":"{\"a\":","purpose":"preview"}`,
		},
		"bytes that are not UTF-8 are no JSON value": {
			&macexecv1.Call{Arguments: []byte("\"\xff\"")},
			`{"tool":"","tool_version":"","arguments":"\"\ufffd\"","purpose":""}`,
		},
		"log data is text": {
			&macexecv1.LogChunk{Data: []byte("{\"a\":1} <\xff\xfe>\n"), Stream: macexecv1.LogStream_LOG_STREAM_STDERR, At: at},
			`{"job_id":"","attempt":0,"stream":"stderr","at":"2026-11-01T11:00:00.5Z","data":"{\"a\":1} <\ufffd\ufffd>\n","cursor":0,"gap_bytes":0}`,
		},
		"large integers are numbers": {
			&macexecv1.JournalReport{Good: math.MaxUint64},
			`{"ok":false,"good":18446744073709551615,"message":""}`,
		},
		"optional zero is present": {
			&macexecv1.Progress{Percent: proto.Float64(0), Phase: macexecv1.JobPhase_JOB_PHASE_RUNNING},
			`{"job_id":"","attempt":0,"phase":"running","percent":0,"rate":"","detail":""}`,
		},
		"keys of maps are sorted": {
			&macexecv1.ListJobsResponse{Damaged: map[string]string{"b": "2", "a": "1", "c": "3"}},
			`{"jobs":[],"damaged":{"a":"1","b":"2","c":"3"},"next_page_token":""}`,
		},
		"an enum value of a later version": {
			&macexecv1.WaitingFor{Kind: 99},
			`{"kind":"unrecognized_99","detail":"","job_id":"","position":0,"job_state":""}`,
		},
		"the set member of a oneof": {
			&macexecv1.UploadFileRequest{Part: &macexecv1.UploadFileRequest_Start{Start: &macexecv1.UploadStart{}}},
			`{"start":{"sha256":"","offset":0}}`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := document.Marshal(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMarshalRefuses(t *testing.T) {
	t.Parallel()
	for _, m := range []proto.Message{
		&macexecv1.Usage{WaitingSeconds: math.NaN()},
		&macexecv1.Progress{Percent: new(math.Inf(1))},
		durationpb.New(time.Second),
	} {
		if got, err := document.Marshal(m); err == nil {
			t.Errorf("%v became %s", m, got)
		}
	}
}

func TestEnumWords(t *testing.T) {
	t.Parallel()
	for _, w := range document.Words[macexecv1.JobState]() {
		e, ok := document.Enum[macexecv1.JobState](w)
		if !ok || document.Word(e) != w {
			t.Errorf("%q became %v, %t", w, e, ok)
		}
	}
	if e, ok := document.Enum[macexecv1.JobState](""); !ok || e != 0 || document.Word(e) != "" {
		t.Errorf(`"" became %v, %t`, e, ok)
	}
	for _, w := range []string{"COMPLETED", "Completed", "unspecified", "job_state_completed", "done", " completed"} {
		if e, ok := document.Enum[macexecv1.JobState](w); ok {
			t.Errorf("%q became %v", w, e)
		}
	}
}

// FuzzJSONText: whatever bytes are where JSON text belongs, the document is one
// line of JSON.
func FuzzJSONText(f *testing.F) {
	for _, seed := range []string{"", "null", "1e400", `{"a":[1,{"b":"\ud800"}]}`, "{", "\xff", "\"\xff\"", "[\n1\n]", "\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := document.Marshal(&macexecv1.Job{Result: text, Message: string(text)})
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(got) || bytes.ContainsAny(got, "\n\r") {
			t.Errorf("not one line of JSON: %s", got)
		}
	})
}
