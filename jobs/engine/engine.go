package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/keeper"
	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/internal/fault"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/policy"
	"github.com/macexec/macexec/schemas"
)

// Options is everything an engine is made of. Every field but Logger, Now, Elapsed
// and Observer is required; Limits has defaults.
type Options struct {
	Store       jobs.Store
	Registry    *schemas.Registry
	Policy      *policy.Policy
	Executor    *executor.Executor
	Programs    *programs.Resolver
	Blobs       *files.Blobs
	SecretKey   []byte // 32 bytes that are not in the store; seals secret arguments
	BootSession string
	Facts       HostInfo // the facts that do not change while the daemon runs
	Limits      Limits
	Now         func() time.Time
	Elapsed     func() time.Duration // a clock that nobody sets and that goes on while the host sleeps
	Logger      *slog.Logger
	Observer    Observer // nil: nobody
}

// Limits bound what the engine takes and how it runs. Zero fields take the
// default stated with each.
type Limits struct {
	Slots          map[string]int // jobs at once by class; a class not named: by the hardware (slots.go)
	MaxAttempts    int            // attempts of a tool that leaves nothing behind: 3
	ApprovalExpiry time.Duration  // how long a call waits for a person: 24 h
	UploadBytes    int64          // the largest upload: 64 GiB
	BlobUnused     time.Duration  // how long an upload stays that no job needs, or that stopped half-way: 24 h
	LogBytes       int64          // kept of one attempt's log: 64 MiB
	Retention      Retention
	// RequireConfinement refuses tools on a host that cannot confine them.
	RequireConfinement bool
}

// WithDefaults returns the limits with the default in every zero field.
func (l Limits) WithDefaults() Limits {
	if l.MaxAttempts == 0 {
		l.MaxAttempts = 3
	}
	if l.ApprovalExpiry == 0 {
		l.ApprovalExpiry = 24 * time.Hour
	}
	if l.UploadBytes == 0 {
		l.UploadBytes = 64 << 30
	}
	if l.BlobUnused == 0 {
		l.BlobUnused = 24 * time.Hour
	}
	if l.LogBytes == 0 {
		l.LogBytes = 64 << 20
	}
	l.Retention = l.Retention.withDefaults()
	return l
}

// Engine takes calls, runs them once and always can say what it knows. All its
// methods are safe for concurrent use.
type Engine struct {
	store    jobs.Store
	registry *schemas.Registry
	policy   *policy.Policy
	exec     *executor.Executor
	programs *programs.Resolver
	blobs    *files.Blobs
	boot     string
	facts    HostInfo
	bounds   atomic.Pointer[Limits] // see limits
	now      func() time.Time
	log      *slog.Logger
	observer Observer

	deadlines   *deadlines
	waiting     waitingRooms
	mode        hostMode
	retryDelay  time.Duration // before what failed for this host's own reasons is tried again
	vault       *vault
	retention   retention
	verified    verified
	keys        keyMutex    // of submissions
	debts       debts       // to the journal; see room.go
	kept        atomic.Bool // the manifests; see keepManifests
	sched       *scheduler
	confinement keeper.Confinement // what this host enforces on a tool

	//nolint:containedctx // it is the engine's own life, not a request's
	// stopped ends when the daemon leaves. A job does not end then: its keeper holds
	// it, and the next engine takes it up again.
	stopped context.Context
	leave   context.CancelFunc
	running sync.WaitGroup

	// shelves is held for writing while blobs are removed, and for reading while one is
	// recorded and put in its place.
	shelves sync.RWMutex

	mu        sync.Mutex
	live      map[string]*live         // jobs with a running attempt, by id
	left      map[string]int           // attempts that are watched without a keeper, by job id; see left.go
	wakeups   map[string]*wakeup       // by job id; see wakeIn
	earlier   map[string]*schemas.Tool // manifests of before an upgrade, by digest
	entropy   *ulid.MonotonicEntropy
	lastMilli uint64
}

// IsTool reports whether a process is of a job that runs now, or of one whose keeper is
// gone and that is watched. A tool is never a caller: a face refuses such a peer.
func (e *Engine) IsTool(pid int) bool {
	e.mu.Lock()
	running := maps.Clone(e.left)
	for id, l := range e.live {
		if n := int(l.attempt.Load()); n > 0 {
			running[id] = n
		}
	}
	e.mu.Unlock()
	for id, n := range running {
		if e.exec.Belongs(id, n, pid) {
			return true
		}
	}
	return false
}

// live is a job that this engine is running. stop is called at most once, when
// the job's stop request has been stored.
type live struct {
	stopOnce sync.Once
	stop     chan struct{}
	attempt  atomic.Int64 // its number, 0 until it is known
	mu       sync.Mutex
	source   func() (Progress, bool) // nil until the tool runs
}

func (l *live) requestStop() { l.stopOnce.Do(func() { close(l.stop) }) }

// New makes an engine that does nothing until Start.
func New(o Options) (*Engine, error) {
	v, err := newVault(o.SecretKey)
	if err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = fault.Now
	}
	if o.Elapsed == nil {
		o.Elapsed = keeper.SinceBoot
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	o.Limits = o.Limits.WithDefaults()
	stopped, leave := context.WithCancel(context.Background())
	e := &Engine{
		registry: o.Registry, policy: o.Policy, exec: o.Executor, programs: o.Programs, blobs: o.Blobs,
		boot: o.BootSession, facts: o.Facts, now: o.Now, log: o.Logger,

		deadlines:   newDeadlines(o.Now, o.Elapsed, o.BootSession),
		waiting:     waitingRooms{rooms: map[string]*waitingRoom{}},
		retryDelay:  defaultRetryDelay,
		vault:       v,
		retention:   retention{wake: make(chan struct{}, 1), deciding: map[string]int{}},
		sched:       newScheduler(slotSizes(runtime.NumCPU(), o.Facts.MemoryBytes, o.Limits.Slots), runtime.NumCPU(), o.Now),
		confinement: keeper.ConfinementOn(keeper.Confine{}),
		stopped:     stopped,
		leave:       leave,
		live:        map[string]*live{},
		left:        map[string]int{},
		wakeups:     map[string]*wakeup{},
		earlier:     map[string]*schemas.Tool{},
		entropy:     ulid.Monotonic(rand.Reader, 0),
	}
	e.bounds.Store(&o.Limits)
	e.observer = guardedObserver{o.Observer, e.guarded}
	e.store = e.telling(o.Store)
	return e, nil
}

// Start takes up what an earlier engine left (see recover.go) and begins to run
// queued jobs. Every job's state is true at any time: what was running stays
// running until its records have been looked at.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.tellOrOwe(ctx, "the daemon started"); err != nil {
		return err
	}
	if err := e.keepManifests(ctx); err != nil && jobs.CodeOf(err) != jobs.CodeDiskFull {
		return err
	}
	e.takeUpClock(ctx)
	if err := e.takeUpMode(ctx); err != nil {
		return err
	}
	if err := e.takeUpRestore(ctx); err != nil {
		return err
	}
	if err := e.recoverAll(ctx); err != nil {
		return err
	}
	e.sched.open()
	e.dispatch()
	e.running.Go(e.sweepUploads)
	e.running.Go(e.keepAwake)
	e.running.Go(e.retain)
	return nil
}

// Stop starts nothing more, ends the watching of running jobs, and waits until
// this engine touches nothing any more. Running jobs stay with their keepers.
func (e *Engine) Stop() {
	e.sched.close()
	e.leave()
	e.mu.Lock()
	for _, w := range e.wakeups {
		w.timer.Stop()
	}
	e.mu.Unlock()
	e.running.Wait()
	if !e.payDebts(context.Background()) {
		e.log.Error("the disk of the store is still full; the journal does not tell all that happened meanwhile")
	}
	if err := e.tell(context.Background(), "the daemon stopped; running jobs stay with their keepers"); err != nil {
		e.log.Warn("the journal does not tell of the stop", "error", err)
	}
}

// tell writes into the journal what happens to the host itself.
func (e *Engine) tell(ctx context.Context, message string) error {
	return e.tellAt(ctx, e.now(), message)
}

func (e *Engine) tellAt(ctx context.Context, at time.Time, message string) error {
	data, err := json.Marshal(map[string]string{"version": e.facts.Version, "boot_session": e.boot, "policy_version": e.policy.Version()})
	if err != nil {
		return jobs.Errorf(jobs.CodeInternal, "describe the host: %w", err)
	}
	return e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, At: at.UTC(), Message: message, Data: data})
}

// newJobID makes an id that sorts by time, even if the clock is stepped back, and
// names this host.
func (e *Engine) newJobID(now time.Time) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastMilli = max(e.lastMilli, ulid.Timestamp(now))
	id, err := ulid.New(e.lastMilli, e.entropy)
	if err != nil {
		return "", jobs.Errorf(jobs.CodeInternal, "make a job id: %w", err)
	}
	return strings.ToLower(id.String()) + "-" + e.store.HostID(), nil
}
