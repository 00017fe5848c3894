package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/policy"
	"github.com/macexec/macexec/schemas"
	"github.com/macexec/macexec/store"
)

// host is a state folder and the engine that works on it, in this process. The
// keepers and tools are real processes; the store is a real one that can be told to
// fail.
type host struct {
	*Engine

	t        testing.TB
	areas    []*files.Blobs // of every engine
	state    string
	store    *flakyStore
	clock    atomic.Pointer[func() time.Time] // nil: the system's
	step     atomic.Int64                     // by which somebody has set the wall clock, in nanoseconds
	stepFrom atomic.Int32                     // the write of the store after which it is set
	began    time.Time
	observer Observer // of the next engine
	limit    Limits   // of the next engine
	boot     string   // of the next engine
}

// owner is the one who asks in these tests.
func owner() Caller { return Caller{Principal: "owner"} }

func newHost(t testing.TB, manifests ...string) *host {
	t.Helper()
	state, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // its tools need a path that they may read
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	h := &host{t: t, state: state, boot: "boot", began: time.Now()}
	for i, text := range manifests {
		h.write(filepath.Join("tools", fmt.Sprintf("tool%d.yaml", i)), text)
	}
	records, err := store.Open(t.Context(), store.Options{Path: filepath.Join(state, "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
		if problems, err := store.Check(filepath.Join(state, "store.db")); err != nil || len(problems) > 0 {
			t.Errorf("the store afterwards: %q, %v", problems, err)
		}
	})
	h.store = &flakyStore{Store: records, read: map[string]int{}}
	h.store.readAny = sync.NewCond(&h.store.mu)
	h.start()
	h.awaitPass() // it reads jobs, and may remove something
	t.Cleanup(func() {
		h.Stop()
		for _, b := range h.areas {
			b.Close()
		}
	})
	root := filepath.Join(state, ProjectsFolder, "p")
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AddProject(t.Context(), owner(), jobs.Project{Name: DefaultProject, Root: root}); err != nil {
		t.Fatal(err)
	}
	return h
}

// start makes a new engine on the state folder, as a new daemon would.
func (h *host) start() {
	h.t.Helper()
	registry, err := schemas.Open(schemas.Options{Dir: filepath.Join(h.state, "tools")})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range registry.Problems() {
		h.t.Fatalf("%s: %+v", p.File, p.Findings)
	}
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	exec, err := executor.New(executor.Options{Root: filepath.Join(h.state, "jobs"), Keeper: []string{self, "keeper"}, BootSession: h.boot})
	if err != nil {
		h.t.Fatal(err)
	}
	resolver, err := programs.New(nil)
	if err != nil {
		h.t.Fatal(err)
	}
	blobs, err := files.OpenBlobs(filepath.Join(h.state, "blobs"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.areas = append(h.areas, blobs)
	h.Engine, err = New(Options{
		Store: h.store, Registry: registry, Policy: policy.Default(), Executor: exec, Programs: resolver, Blobs: blobs,
		Now: h.time, Elapsed: h.elapsed, SecretKey: []byte(strings.Repeat("k", 32)), BootSession: h.boot, Facts: HostInfo{StatePath: h.state},
		Observer: h.observer, Limits: h.limit,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.retryDelay, h.deadlines.grace = 10*time.Millisecond, 20*time.Millisecond
	if err := h.Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// time is what the engine's clock shows.
func (h *host) time() time.Time {
	if h.store.made.Load() < h.stepFrom.Load() {
		return h.unset()
	}
	return h.unset().Add(time.Duration(h.step.Load()))
}

// unset is what the clock would show if nobody had set it.
func (h *host) unset() time.Time {
	if clock := h.clock.Load(); clock != nil {
		return (*clock)()
	}
	return time.Now()
}

func (h *host) elapsed() time.Duration { return h.unset().Sub(h.began) }

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.state, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// project is the path of a file in the project.
func (h *host) project(name string) string { return filepath.Join(ProjectsFolder, "p", name) }

func (h *host) submit(tool, args string) *jobs.Job {
	h.t.Helper()
	r, err := h.Submit(h.t.Context(), owner(), Request{Tool: tool, Key: "k", Arguments: []byte(args), Purpose: jobs.PurposeProduction})
	if err != nil {
		h.t.Fatalf("submit %s: %v", tool, err)
	}
	return r.Job
}

// await returns the job once ok says so; it waits for events, and gives up only when
// the whole test does.
func (h *host) await(id string, ok func(*jobs.Job) bool) *jobs.Job {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	for {
		head := h.store.Head()
		job, err := h.store.Get(ctx, id)
		if err != nil {
			h.t.Fatal(err)
		}
		if ok(job) {
			return job
		}
		if err := h.store.Wait(ctx, head); err != nil {
			h.t.Fatalf("job %s is %s %s (%s): %v", id, job.State, job.Phase, job.Message, err)
		}
	}
}

func settled(j *jobs.Job) bool { return j.State.Settled() }

func running(j *jobs.Job) bool { return j.Phase == jobs.PhaseRunning }

func (h *host) wantState(job *jobs.Job, want jobs.State, reason jobs.EndReason) {
	h.t.Helper()
	if job.State != want || job.EndReason != reason {
		h.t.Fatalf("job is %s (%s): %s; want %s (%s)", job.State, job.EndReason, job.Message, want, reason)
	}
}

// starts counts the attempts whose tool was released.
func starts(job *jobs.Job) int {
	n := 0
	for _, at := range job.Attempts {
		if at.Started != nil {
			n++
		}
	}
	return n
}

// flakyStore fails chosen writes.
type flakyStore struct {
	jobs.Store
	mu   sync.Mutex
	fail func(write int) error // asked for each Update, counted from 1; nil: none fails
	done bool                  // the write is made although it is said to have failed
	n    int
	made atomic.Int32 // writes that were made
	// refuse is what every new decision is answered with; nil: none is refused.
	refuse      error
	refuseMode  error          // what a new mode is answered with; nil: none is refused
	full        atomic.Bool    // the disk: no write is made
	noManifests bool           // no kept manifest can be read
	brokenMode  error          // what the kept mode is answered with; nil: it is good
	read        map[string]int // how often each job was read
	readAny     *sync.Cond
	idle        func()                // called when a reader of the journal has read it all
	failRead    func(read int) error  // asked for each read of a job, counted from 1 by job; nil: none fails
	deciding    func(context.Context) // called before a submission is decided
	collecting  func()                // called before old uploads are collected
	updating    func(id string)       // called before a job is changed
}

//nolint:gochecknoglobals // an error value
var errFull = jobs.Errorf(jobs.CodeDiskFull, "no room")

func (s *flakyStore) Wait(ctx context.Context, after uint64) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		idle()
	}
	return s.Store.Wait(ctx, after)
}

func (s *flakyStore) Get(ctx context.Context, id string) (*jobs.Job, error) {
	s.mu.Lock()
	s.read[id]++
	n, fail := s.read[id], s.failRead
	s.readAny.Broadcast()
	s.mu.Unlock()
	if fail != nil {
		if err := fail(n); err != nil {
			return nil, err
		}
	}
	return s.Store.Get(ctx, id)
}

// awaitReads returns when a job was read so often.
func (s *flakyStore) awaitReads(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.read[id] < n {
		s.readAny.Wait()
	}
}

func (s *flakyStore) reads(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read[id]
}

func (s *flakyStore) Submit(ctx context.Context, sub jobs.Submission) (jobs.Submitted, error) {
	if s.full.Load() {
		return jobs.Submitted{}, errFull
	}
	if s.refuse != nil {
		return jobs.Submitted{}, s.refuse
	}
	if s.deciding != nil {
		s.deciding(ctx)
	}
	return s.Store.Submit(ctx, sub)
}

func (s *flakyStore) Append(ctx context.Context, e jobs.Entry) error {
	if s.full.Load() {
		return errFull
	}
	if s.refuse != nil && e.Kind != jobs.EntryHost {
		return s.refuse
	}
	return s.Store.Append(ctx, e)
}

func (s *flakyStore) CollectBlobs(ctx context.Context, unusedSince time.Time, limit int) ([]jobs.Blob, error) {
	if s.collecting != nil {
		s.collecting()
	}
	return s.Store.CollectBlobs(ctx, unusedSince, limit)
}

func (s *flakyStore) PutManifest(ctx context.Context, digest string, text []byte) error {
	if _, err := s.Store.Manifest(ctx, digest); err != nil && s.full.Load() {
		return errFull
	}
	return s.Store.PutManifest(ctx, digest, text)
}

func (s *flakyStore) Manifest(ctx context.Context, digest string) ([]byte, error) {
	if s.noManifests {
		return nil, jobs.Errorf(jobs.CodeRecordDamaged, "the manifest cannot be read")
	}
	return s.Store.Manifest(ctx, digest)
}

func (s *flakyStore) SetMode(ctx context.Context, m jobs.HostMode) error {
	if s.refuseMode != nil {
		return s.refuseMode
	}
	return s.Store.SetMode(ctx, m)
}

func (s *flakyStore) Mode(ctx context.Context) (jobs.HostMode, error) {
	if s.brokenMode != nil {
		return jobs.HostMode{}, s.brokenMode
	}
	return s.Store.Mode(ctx)
}

func (s *flakyStore) failing(done bool, fail func(int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.done, s.fail = 0, done, fail
}

func (s *flakyStore) Update(ctx context.Context, id string, change func(*jobs.Job) (jobs.Note, error)) (*jobs.Job, error) {
	s.mu.Lock()
	s.n++
	n, fail, done, updating := s.n, s.fail, s.done, s.updating
	s.mu.Unlock()
	if updating != nil {
		updating(id)
	}
	var err error
	if s.full.Load() {
		return nil, errFull
	}
	if fail != nil {
		err = fail(n) // not under the lock: it may write itself
	}
	if err != nil && !done {
		return nil, err
	}
	job, failed := s.Store.Update(ctx, id, change)
	s.made.Add(1)
	if err != nil && failed == nil {
		return nil, err
	}
	return job, failed
}
