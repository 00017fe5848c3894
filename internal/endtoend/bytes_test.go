package endtoend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// B60: bytes that are no text, in what a tool prints, in the name of a file and in the
// words of an error, end no stream and no job, and those of a log arrive as they are.
func TestB60_BytesThatAreNoText(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	var want bytes.Buffer
	want.WriteString("\xff\xfecaf\xc3\xa9\x00\x1b[1m\r50%\r100%")
	if _, err := io.CopyN(&want, rand.NewChaCha8([32]byte{60}), 1<<20); err != nil {
		t.Fatal(err)
	}
	open := l.gate("a")
	id := d.submit(call("a", "ledger_none", l.args("a", "raw:fffe", "gate",
		"raw:636166c3", "raw:a9", "raw:001b5b316d", "raw:0d3530250d31303025", "noise:1048576", "rawerr:6661696c65643a20e97468e90a", "exit:3"))).GetId()
	events := make(chan error, 1)
	go func() {
		settled := errors.New("settled")
		err := d.Watch(d.context(), &macexecv1.WatchJobsRequest{Progress: true}, func(e *macexecv1.Event) error {
			if client.Settled(e.GetJob().GetState()) {
				return settled
			}
			return nil
		})
		if errors.Is(err, settled) {
			err = nil
		}
		events <- err
	}()
	read := func(follow bool) (got, complaints []byte) {
		err := d.ReadLogs(d.context(), &macexecv1.ReadJobLogsRequest{JobId: id, Follow: follow}, func(c *macexecv1.LogChunk) error {
			if c.GetStream() == macexecv1.LogStream_LOG_STREAM_STDERR {
				complaints = append(complaints, c.GetData()...)
			} else if got = append(got, c.GetData()...); len(got) == 2 {
				open()
			}
			return nil
		})
		if err != nil {
			t.Errorf("the log, follow %v: %v", follow, err)
		}
		return got, complaints
	}
	for _, follow := range []bool{true, false} {
		got, complaints := read(follow)
		if !bytes.Equal(got, want.Bytes()) || string(complaints) != "failed: \xe9th\xe9\n" {
			t.Errorf("the log, follow %v: %d bytes, want %d; complaints %q", follow, len(got), want.Len(), complaints)
		}
	}
	job := d.wait(id, failed)
	if err := <-events; err != nil {
		t.Errorf("the watch: %v", err)
	}
	if job.GetAttempts()[0].GetExit().GetCode() != 3 {
		t.Errorf("it ended with %v", job.GetAttempts()[0].GetExit())
	}
	wantText(t, job.GetMessage(), job.GetCause(), strings.Join(job.GetLogTail(), ""))
	if exit, err := keeper.ReadExit(d.attempt(id, 1)); err != nil || exit.Stdout.Bytes != int64(want.Len()) {
		t.Errorf("the keeper counted %d bytes: %v", exit.Stdout.Bytes, err)
	}
	for _, args := range [][]string{{"jobs", "show", id}, {"jobs", "show", id, "-o", "json"}, {"jobs", "list", "--all"}} {
		if code, out := d.macexec(args...); code != 0 || !utf8.ValidString(out) {
			t.Errorf("macexec %v: exit code %d and %.200q", args, code, out)
		}
	}

	// Names: in a project, and in what a tool makes.
	if err := os.Mkdir(filepath.Join(d.project, "tree"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.project, "tree", "a\xffb"), []byte("x"), 0o600); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: this file system has no such names: %v", err)
	}
	_, err := d.Submit(d.context(), call("tree", "ledger_none", l.args("tree").with("tree", "tree")))
	wantCode(t, err, "ARGUMENTS_NOT_POSSIBLE")
	wantText(t, strings.Join(findings(err), " "))
	made := d.wait(d.submit(call("made", "ledger_staged", l.args("made", `folder:file c\xffd 1`).with("folder_output", "made"))).GetId(), failed)
	if !strings.Contains(made.GetMessage(), "c") {
		t.Errorf("a bad name in an output: %q", made.GetMessage())
	}
	wantText(t, made.GetMessage(), made.GetCause())
}

// B60: a line may be of any length, and a progress bar one of carriage returns; the log
// has every byte, and what is shown of it stays small.
func TestB60_ALineOfAnyLength(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	const long = 20 << 20
	id := d.submit(call("a", "ledger_none", l.args("a", "json:"+strconv.Itoa(long), "raw:0d3530250d31303025", "exit:4"))).GetId()
	var got int
	var last []byte
	err := d.ReadLogs(d.context(), &macexecv1.ReadJobLogsRequest{JobId: id, Follow: true}, func(c *macexecv1.LogChunk) error {
		if c.GetGapBytes() != 0 {
			t.Errorf("%d bytes are missing", c.GetGapBytes())
		}
		got, last = got+len(c.GetData()), c.GetData()
		return nil
	})
	if want := long + len(`{"text":""}`) + len("\r50%\r100%"); err != nil || got != want || !bytes.HasSuffix(last, []byte("\r50%\r100%")) {
		t.Errorf("the log has %d bytes, want %d, and ends with %.40q: %v", got, want, last, err)
	}
	job := d.wait(id, failed)
	if shown := len(strings.Join(job.GetLogTail(), "")); shown > 64<<10 {
		t.Errorf("%d bytes of the log are in the job", shown)
	}
}

func wantText(t *testing.T, all ...string) {
	t.Helper()
	for _, text := range all {
		if !utf8.ValidString(text) {
			t.Errorf("%q is no text", text)
		}
	}
}

// B67: whatever is large is refused with a reason of its own, or can be read whole by a
// client that takes gRPC's 4 MiB and no more.
func TestB67_LargeThingsHaveAWay(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.write(filepath.Join(d.state, "tools", "large.yaml"), fmt.Sprintf(`
tool: large
version: "2026-01-01"
title: Print much
description: Prints a text of some length, for a test.
effects: none
purposes: [production]
input:
  type: object
  additionalProperties: false
  required: [folder, size]
  properties:
    folder: {type: string, maxLength: 256}
    size: {type: string, maxLength: 16}
    text: {type: string, maxLength: 1000000}
output: {type: object, additionalProperties: false, properties: {text: {type: string}}}
run:
  - platforms: [linux, darwin]
    programs: {testtool: {}}
    command:
      program: testtool
      argv: [{cel: args.folder}, large, {cel: '"json:" + args.size'}]
      stdout: capture
      parser: {kind: json}
    paths: {cache: [%q]}
    timeout: 1m
    slot: large
result: "{'text': tool.text}"
`, built.ledgers))
	d.write(filepath.Join(d.state, "tools", "wide.yaml"), "tool: wide\ndescription: "+strings.Repeat("d", 5<<20)+"\n")
	d.end(syscall.SIGTERM)
	d.start()
	large := func(key string, size, text int) *macexecv1.SubmitJobRequest {
		return call(key, "large", arguments{"folder": l.dir, "size": fmt.Sprint(size), "text": strings.Repeat("t", text)})
	}

	// A result of 10 MiB.
	id := d.submit(large("result", 10<<20, 0)).GetId()
	job := d.wait(id, completed)
	if got := job.GetOmitted(); len(got) != 1 || got[0] != "result" {
		t.Errorf("left out are %q", got)
	}
	var result, whole bytes.Buffer
	if _, err := d.Fetch(d.context(), "job:"+id+"/@result", &result); err != nil {
		t.Error(err)
	}
	var text struct{ Text string }
	if err := json.Unmarshal(result.Bytes(), &text); err != nil || text.Text != strings.Repeat("r", 10<<20) {
		t.Errorf("the result as a file has a text of %d bytes: %v", len(text.Text), err)
	}
	if _, err := d.Fetch(d.context(), "job:"+id+"/@job", &whole); err != nil || !json.Valid(whole.Bytes()) || whole.Len() < result.Len() {
		t.Errorf("the job as a file has %d bytes: %v", whole.Len(), err)
	}
	if code, out := d.macexec("files", "get", "job:"+id+"/@result", "-"); code != 0 || !strings.Contains(out, result.String()) {
		t.Errorf("macexec files get: exit code %d and %d bytes", code, len(out))
	}
	_, err := d.Fetch(d.context(), "job:"+id+"/@more", io.Discard)
	wantCode(t, err, "FILE_NOT_FOUND")

	// More jobs than a message holds.
	all := map[string]bool{id: true}
	for i := range 25 {
		all[d.submit(large(fmt.Sprint("list", i), 1, 200_000)).GetId()] = true
	}
	pages := 0
	for token := ""; ; {
		page, err := d.Jobs.ListJobs(d.context(), &macexecv1.ListJobsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, job := range page.GetJobs() {
			delete(all, job.GetId())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(all) > 0 || pages < 2 {
		t.Errorf("%d pages leave out %d jobs", pages, len(all))
	}

	// Arguments, a key and an error that are too large.
	for _, size := range []int{1_100_000, 3_900_000, 4_100_000, 20_000_000} {
		_, err := d.Submit(d.context(), large("too large", 1, size))
		wantCode(t, err, "ARGUMENTS_TOO_LARGE")
	}
	_, err = d.Submit(d.context(), large(strings.Repeat("k", 10<<10), 1, 0))
	wantCode(t, err, "REQUEST_INVALID")
	var unknown strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&unknown, `,"unknown%05d":1`, i)
	}
	_, err = d.Submit(d.context(), call("unknown", "large", `{"folder":"x","size":"1"`+unknown.String()+"}"))
	if refused := wantCode(t, err, "ARGUMENTS_SCHEMA_VIOLATION"); len(refused.Findings()) == 0 {
		t.Error("an error of many findings has none")
	}

	// A manifest that is too large is a tool less, and said.
	tools, err := d.Tools.ListTools(d.context(), &macexecv1.ListToolsRequest{})
	if err != nil || len(tools.GetProblems()) == 0 {
		t.Errorf("the problems of the tools are %v: %v", tools.GetProblems(), err)
	}
	d.wait(d.submit(large("after", 1, 0)).GetId(), completed)
}
