package store_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/store"
	"github.com/macexec/macexec/store/storetest"
)

// child starts the test binary as another process. Whoever calls must wait for it.
func child(t testing.TB, role, path string) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), childRole+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewScanner(out)
}

// submitForever submits from many goroutines, cancels what it has, supersedes that,
// fences keys, closes runs and sets the mode, and prints what it did when it is
// answered, until the process is killed.
func submitForever(path string) {
	s, err := store.Open(context.Background(), store.Options{Path: path})
	if err != nil {
		fmt.Println(err)
		return
	}
	var wg sync.WaitGroup
	first := int(s.Head()) * 1000 // above every number that earlier rounds used
	for worker := range 8 {
		wg.Go(func() {
			for n := first + worker; ; n += 8 {
				if err := submitSteps(s, n, func(what, id string) { _, _ = os.Stdout.WriteString(what + " " + id + "\n") }); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The words of submitForever besides a job's revision.
const (
	saidFenced = "fenced"
	saidClosed = "closed"
	saidPaused = "paused"
)

// submitSteps makes one write of each kind for the n-th job, and says each when it is
// answered.
func submitSteps(s *store.Store, n int, say func(what, id string)) error {
	ctx := context.Background()
	j := storetest.NewJob(n)
	j.Call.Context.RunID = "run-" + j.ID
	if _, err := s.Submit(ctx, storetest.Submission(j)); err != nil {
		return err
	}
	say("1", j.ID)
	if _, err := s.Update(ctx, j.ID, storetest.Cancel); err != nil {
		return err
	}
	say("2", j.ID)
	next := storetest.NewJob(n)
	next.ID = strings.Replace(j.ID, "01K", "01L", 1)
	next.Key, next.Call.Options.Supersedes = "next of "+j.Key, j.ID
	if _, err := s.Submit(ctx, storetest.Submission(next)); err != nil {
		return err
	}
	say("3", j.ID)
	if _, _, err := s.FenceKey(ctx, jobs.Key{Principal: j.Principal, Text: saidFenced + j.ID}, jobs.Entry{}); err != nil {
		return err
	}
	say(saidFenced, j.ID)
	if _, err := s.CloseRuns(ctx, jobs.RunClosing{Principal: j.Principal, RunIDs: []string{"run-" + j.ID}}); err != nil {
		return err
	}
	say(saidClosed, j.ID)
	if err := s.SetMode(ctx, jobs.HostMode{Mode: jobs.ModePaused, Reason: j.ID}); err != nil {
		return err
	}
	say(saidPaused, j.ID)
	return nil
}

// G3: whatever a daemon answered before it was killed is there afterwards, and the
// store is whole.
func TestKill(t *testing.T) {
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	path := newPath(t)
	answered := killed{revisions: map[string]uint64{}, said: map[string][]string{}}
	for range rounds {
		cmd, _, lines := child(t, "submit", path)
		for left := 1 + rand.IntN(200); left > 0 && lines.Scan(); left-- {
			answered.answer(t, lines.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what was answered before the end
			answered.answer(t, lines.Text())
		}
		_ = cmd.Wait()
		wantClean(t, path)
		s := open(t, path)
		answered.want(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(answered.revisions) == 0 {
		t.Error("nothing was answered")
	}
}

// killed is what a process said before it was killed.
type killed struct {
	revisions map[string]uint64   // by job id
	said      map[string][]string // job ids, by the word
}

func (k killed) answer(t *testing.T, line string) {
	word, id, ok := strings.Cut(line, " ")
	if !ok || len(id) != len(storetest.JobID(0)) {
		t.Logf("the child says %q", line) // the kill may have cut its last line
		return
	}
	if n, err := strconv.ParseUint(word, 10, 64); err == nil {
		k.revisions[id] = max(k.revisions[id], n)
	} else {
		k.said[word] = append(k.said[word], id)
	}
}

// want holds a store to all that was said.
func (k killed) want(t *testing.T, s *store.Store) {
	t.Helper()
	for id, revision := range k.revisions {
		j, err := s.Get(t.Context(), id)
		if err != nil || j.Revision < revision || (j.SupersededBy != "") != (j.Revision == 3) {
			t.Errorf("job %s was answered at revision %d: %+v, %v", id, revision, j, err)
		}
	}
	for _, id := range k.said[saidFenced] {
		record, err := s.LookupKey(t.Context(), jobs.Key{Principal: "orchestrator", Text: saidFenced + id})
		if err != nil || record.Kind != jobs.KeyFence {
			t.Errorf("the key of %s was fenced: %+v, %v", id, record, err)
		}
	}
	for _, id := range k.said[saidClosed] {
		fresh, err := s.CloseRuns(t.Context(), jobs.RunClosing{Principal: "orchestrator", RunIDs: []string{"run-" + id}})
		if err != nil || len(fresh.RunIDs) != 0 {
			t.Errorf("the run of %s was closed: %+v, %v", id, fresh, err)
		}
	}
	if m, err := s.Mode(t.Context()); err != nil || len(k.said[saidPaused]) > 0 && m.Mode != jobs.ModePaused {
		t.Errorf("the host was paused: %+v, %v", m, err)
	}
	var ended int64
	sum, err := s.SumUsage(t.Context(), jobs.UsageQuery{By: jobs.UsageByTool})
	for _, row := range sum.Rows {
		ended += row.Cancelled
	}
	page, listed := jobs.Query{States: []jobs.State{jobs.StateCancelled}, Limit: 1000}, int64(0)
	for more := true; more && err == nil; {
		var p jobs.Page
		p, err = s.List(t.Context(), page)
		listed += int64(len(p.Jobs))
		page.After, more = p.Next, p.Next != ""
	}
	if err != nil || ended != listed {
		t.Errorf("%d jobs ended and %d are counted, %v", listed, ended, err)
	}
}

// A store that another process holds is refused after a bounded wait, with the
// words that a person needs.
func TestHeldElsewhere(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	open(t, path).Close()
	cmd, in, lines := child(t, "hold", path)
	defer cmd.Wait()
	defer in.Close()
	if !lines.Scan() || lines.Text() != "held" {
		t.Fatalf("the child says %q", lines.Text())
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	_, err := store.Open(t.Context(), store.Options{Path: path, LockWait: -1})
	describe(t, err, path, pid, filepath.Base(os.Args[0]))
	_, err = store.Check(path)
	describe(t, err, path, pid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Open(ctx, store.Options{Path: path}); jobs.CodeOf(err) != jobs.CodeCallerGone {
		t.Errorf("got %v", err)
	}

	opened := make(chan error)
	go func() {
		s, err := store.Open(context.Background(), store.Options{Path: path})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	_ = in.Close()
	if err := <-opened; err != nil {
		t.Errorf("after the other process has ended: %v", err)
	}
}

// writeOverLimit lets the kernel refuse that the store's file grows, in the middle
// of the work of many callers, and prints what they and later ones are told.
func writeOverLimit(path string) int {
	signal.Ignore(syscall.SIGXFSZ)
	s, err := store.Open(context.Background(), store.Options{Path: path})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	info, err := os.Stat(path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	limit := syscall.Rlimit{Cur: uint64(info.Size()) + 1<<10, Max: uint64(info.Size()) + 1<<10}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		fmt.Println(err)
		return 1
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := worker; ; n += 8 {
				sub := storetest.Submission(storetest.NewJob(n))
				sub.Job.Message = strings.Repeat("x", 100_000)
				got, err := s.Submit(context.Background(), sub)
				mu.Lock()
				if err == nil {
					fmt.Println("stored", got.Job.ID)
				} else {
					fmt.Println(jobs.CodeOf(err), sub.Job.ID)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	<-s.Failed()
	_, err = s.Get(context.Background(), storetest.JobID(0))
	fmt.Println("get", jobs.CodeOf(err))
	fmt.Println("append", jobs.CodeOf(s.Append(context.Background(), jobs.Entry{Kind: jobs.EntryHost})))
	fmt.Println("wait", jobs.CodeOf(s.Wait(context.Background(), 1<<40)))
	fmt.Println("close", jobs.CodeOf(s.Close()))
	return 0
}

// A commit that the kernel refuses in the middle is unknown to all who were in it;
// afterwards the store says nothing but that it failed, and the file is whole.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	open(t, path).Close()
	cmd, _, lines := child(t, "limit", path)
	said := map[string][]string{}
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		said[word] = append(said[word], rest)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]string{"get": "STORE_FAILED", "append": "STORE_FAILED", "wait": "STORE_FAILED", "close": ""} {
		if got := said[word]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q", word, got)
		}
	}
	if len(said["COMMIT_UNKNOWN"]) == 0 || len(said["COMMIT_UNKNOWN"])+len(said["STORE_FAILED"]) != 8 {
		t.Errorf("the callers were told %v", said)
	}
	wantClean(t, path)
	s := open(t, path)
	for _, id := range said["stored"] {
		if _, err := s.Get(t.Context(), id); err != nil {
			t.Errorf("job %s was answered: %v", id, err)
		}
	}
}

// G13: a file that cannot be understood is refused, said, and left as it is.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	whole := newPath(t)
	s := open(t, whole)
	for n := range 200 {
		submit(t, s, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for name, spoil := range map[string]func([]byte) []byte{
		"empty":               func([]byte) []byte { return nil },
		"text":                func([]byte) []byte { return []byte("not a store\n") },
		"zeros":               func(b []byte) []byte { return make([]byte, len(b)) },
		"cut to a few bytes":  func(b []byte) []byte { return b[:100] },
		"cut to one page":     func(b []byte) []byte { return b[:page] },
		"cut to three pages":  func(b []byte) []byte { return b[:3*page] },
		"both metas damaged":  func(b []byte) []byte { b[40] ^= 1; b[page+40] ^= 1; return b },
		"pages are all noise": func(b []byte) []byte { copy(b[2*page:], bytes.Repeat([]byte{0xA5}, len(b)-2*page)); return b },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			bad := spoil(bytes.Clone(good))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(t.Context(), store.Options{Path: path, LockWait: -1})
			if err == nil {
				s.Close()
			}
			describe(t, err, path, "left as it is", "store restore FILE")
			if problems, err := store.Check(path); err == nil && len(problems) == 0 {
				t.Error("Check finds nothing")
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
				t.Errorf("the file was changed, %v", err)
			}
			// The refusal gave the lock back.
			if _, err := store.Open(t.Context(), store.Options{Path: path, LockWait: -1}); err != nil && strings.Contains(err.Error(), "in use by") {
				t.Error(err)
			}
		})
	}
}

// G13: damage anywhere in the file neither ends the process nor changes the file's
// good parts into other ones.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	whole := newPath(t)
	s := open(t, whole)
	for n := range 300 {
		submit(t, s, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	good = bytes.TrimRight(good, "\x00")
	good = append(good, make([]byte, os.Getpagesize()-len(good)%os.Getpagesize())...)
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, seed))
		bad := bytes.Clone(good)
		for range 1 + random.IntN(40) {
			// Mostly the headers and elements at the start of pages, where numbers lie.
			at := random.IntN(len(bad)/512)*512 + random.IntN(64)
			bad[at] = byte(random.Uint32())
		}
		path := filepath.Join(t.TempDir(), "store.db")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Check(path); err != nil {
			describe(t, err, path)
		}
		s, err := store.Open(t.Context(), store.Options{Path: path, LockWait: -1})
		if err != nil {
			continue
		}
		for n := range 300 {
			if j, err := s.Get(t.Context(), storetest.JobID(n)); err == nil && j.ID != storetest.JobID(n) {
				t.Errorf("seed %d: asked for job %d, got %s", seed, n, j.ID)
			}
		}
		_, _ = s.List(t.Context(), jobs.Query{})
		_, _, _ = s.Open(t.Context())
		_, _ = s.VerifyJournal(t.Context())
		_, _ = s.Submit(t.Context(), storetest.Submission(storetest.NewJob(1000)))
		_, _ = s.Update(t.Context(), storetest.JobID(5), storetest.Start)
		_ = s.Close()
	}
}
