package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/executor/programs"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/launchd"
	"github.com/macexec/macexec/policy"
	"github.com/macexec/macexec/schemas"
	"github.com/macexec/macexec/server"
	"github.com/macexec/macexec/store"
)

// drainTime is how long open requests may take to end once the daemon is told to
// stop. Jobs need none of it: they go on with their keepers.
const drainTime = 10 * time.Second

// keeperVerb makes macexec play the keeper itself; see main.
const keeperVerb = "keeper"

// serve runs the daemon until ctx ends, and then ends it gracefully. The order is
// the safety: the store's lock proves that no other daemon has this state folder;
// only then is its socket touched; what was running is looked at before the first
// call is taken; and it is said to be ready when it is.
func serve(ctx context.Context, o serveOptions, std stdio) (err error) {
	ready := false
	defer func() {
		if ctx.Err() != nil && !ready {
			err = nil // told to stop before it was ready: no fault, and nothing has begun
		}
	}()
	boundMemory(ctx)
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return cannotServe("the state folder cannot be made", err)
	}
	configPath := filepath.Join(o.State, configName)
	conf, err := readConfig(configPath)
	if err != nil {
		return failed(exitUsage, jobs.CodeRequestInvalid, "the configuration cannot be used: "+err.Error(), "mend config.yaml and start macexec serve again; no job was changed")
	}
	watching, err := observe(conf, o.Version, std.Err)
	if err != nil {
		return cannotServe("the log cannot be begun", err)
	}
	log := watching.log()
	if err := notForgotten(o.State); err != nil {
		return cannotServe("the store is gone", err)
	}
	// Before the store, so that a store without its key is one whose key was lost.
	secret, err := secretKey(filepath.Join(o.State, "secret.key"), filepath.Join(o.State, "store.db"))
	if err != nil {
		return cannotServe("the key of secret arguments cannot be used", err)
	}
	folders, err := jobFolders(o.State)
	if err != nil {
		return cannotServe("the folders of jobs cannot be listed", err)
	}
	records, err := store.Open(ctx, store.Options{
		Path: filepath.Join(o.State, storeName), Logger: log, Committed: watching.committed(),
		Jobs: folders, Started: func(id string) bool { return executor.Recorded(filepath.Join(o.State, jobsName), id) },
	})
	if err != nil {
		return cannotServe("the store cannot be opened", err)
	}
	defer func() {
		if err := records.Close(); err != nil {
			log.Error("the store was not closed well", "error", err)
		}
	}()
	defer watching.close() //nolint:contextcheck // what waits is sent after the daemon was told to stop
	if err := watching.trace(ctx, conf, o.Version, records.HostID()); err != nil {
		return cannotServe("tracing cannot begin", err)
	}
	eng, err := newEngine(o, conf, records, secret, watching)
	if err != nil {
		return cannotServe("the daemon cannot be set up", err)
	}
	if err := watching.listen(conf, eng, records); err != nil {
		return cannotServe("the metrics cannot be served", err)
	}
	if err := nameProjects(ctx, eng, o.State, conf.Projects, log); err != nil {
		return cannotServe("the projects cannot be named", err)
	}
	socket := filepath.Join(o.State, socketName)
	lis, err := server.ListenUnix(socket)
	if err != nil {
		return cannotServe("the socket cannot be opened", err)
	}
	defer lis.Close() //nolint:errcheck // the server closes it; who connects meanwhile is answered once the server runs
	if err := eng.Start(ctx); err != nil {
		return cannotServe("what an earlier daemon left cannot be read", err)
	}
	defer eng.Stop()
	inForce := newConfiguration(configPath, conf, eng, log)
	face := server.New(server.Options{Engine: server.Adapt(eng), Config: inForce, Resolve: ownerButNoTool(eng), Log: log, Observe: watching.requests()})
	served := make(chan error, 1)
	go func() { served <- face.Serve(lis) }()
	ready = true
	o.Ready("unix:" + socket)

	for told := false; !told; {
		select {
		case <-o.Reload:
			inForce.hangUp(ctx)
			continue
		case <-ctx.Done():
		case <-records.Failed():
			// What is true now is only on the disk; the next start reads it from there.
			err = cannotServe("the store cannot be written", fmt.Errorf("%w; stopping, so that nothing is claimed that is not stored; running jobs go on with their keepers", records.Failure()))
		case err = <-served:
			return cannotServe("the socket cannot be served", err)
		}
		told = true
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	_ = face.Stop(drain) // what is late is cut off
	<-served             //nolint:errcheck // nil after Stop
	return err
}

// ownerButNoTool takes this user for the owner, but not a tool that a job runs as this
// user: a tool is never a caller.
func ownerButNoTool(eng *engine.Engine) server.Resolver {
	owner := server.OwnerOnly()
	return func(p server.Peer) (server.Principal, error) {
		if eng.IsTool(int(p.PID)) {
			return server.Principal{}, jobs.Errorf(jobs.CodeNotAuthenticated, "process %d belongs to a running job, and a tool is never a caller", p.PID)
		}
		return owner(p)
	}
}

func cannotServe(what string, err error) error {
	switch e, _ := errors.AsType[*jobs.Error](err); jobs.CodeOf(err) {
	case jobs.CodeStoreMissing, jobs.CodeStoreReplaced, jobs.CodeStoreOlder:
		f := failed(exitRefused, e.Code, e.Message, "docs/store.md tells what to do; nothing was changed")
		f.document.Metadata = e.Metadata
		return f
	default:
		return failed(exitRefused, jobs.CodeCannotServe, what+": "+err.Error(), "mend that and start macexec serve again; no job was changed")
	}
}

// newEngine wires the rooms together.
func newEngine(o serveOptions, conf config, records *store.Store, secret []byte, watching *observers) (*engine.Engine, error) {
	log := watching.log()
	started := time.Now()
	boot, err := launchd.BootSession()
	if err != nil {
		return nil, fmt.Errorf("the boot session cannot be told: %w", err)
	}
	registry, err := schemas.Open(schemas.Options{Dir: filepath.Join(o.State, "tools")})
	if err != nil {
		return nil, err
	}
	for _, p := range registry.Problems() {
		for _, f := range p.Findings {
			log.Warn("a manifest is left out", "file", p.File, "problem", f.Message)
		}
	}
	resolver, err := programs.New(conf.ToolPath)
	if err != nil {
		return nil, err
	}
	blobs, err := files.OpenBlobs(filepath.Join(o.State, "blobs"))
	if err != nil {
		return nil, err
	}
	keepers := filepath.Join(o.State, "keepers")
	keeper, err := ownKeeper(keepers)
	if err != nil {
		return nil, err
	}
	exec, err := executor.New(executor.Options{Root: filepath.Join(o.State, jobsName), Keeper: keeper, Keepers: keepers, BootSession: boot, Logger: log})
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Options{
		Store: records, Registry: registry, Policy: policy.Default(), Executor: exec, Programs: resolver,
		Blobs: blobs, SecretKey: secret, BootSession: boot, Limits: conf.limits(), Logger: log,
		Observer: watching.engine(),
		Facts: engine.HostInfo{
			OS: runtime.GOOS, OSVersion: launchd.OSVersion(), Arch: runtime.GOARCH, BootSession: boot,
			Version: o.Version, StatePath: o.State, MemoryBytes: launchd.MemoryBytes(), StartedAt: started,
		},
	})
}

// notForgotten refuses to begin with a new store where jobs have been run: every key
// would be free again.
func notForgotten(state string) error {
	path := filepath.Join(state, storeName)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := store.Missing(path); err != nil {
		return err
	}
	attempts, err := os.ReadDir(filepath.Join(state, jobsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(attempts) > 0 {
		return jobs.Errorf(jobs.CodeStoreMissing, "%s has jobs but no store.db, and with a new one their keys could start again; put store.db back, or a copy of it: macexec store restore FILE. Only if there is none, begin anew: macexec store adopt --empty --reason TEXT", state).With("path", path)
	}
	return nil
}

// secretKey reads the key that seals secret arguments. It is made once, before the
// store: where there is a store and no key, the key was lost, and with it the secrets
// and the fingerprints of calls that have any.
func secretKey(path, storePath string) ([]byte, error) {
	key, err := os.ReadFile(path)
	switch {
	case err == nil && len(key) == secretKeySize:
		return key, nil
	case err == nil:
		return nil, fmt.Errorf("%s does not hold a key of %d bytes; put the right file back", path, secretKeySize)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if _, err := os.Stat(storePath); err == nil {
		return nil, fmt.Errorf("%s is missing beside a store; put it back. To go on without it, so that secret arguments of earlier jobs stay sealed for ever, make a new one: head -c %d /dev/urandom > %s", path, secretKeySize, path)
	}
	key = make([]byte, secretKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	// Linked into its name, so that of two daemons that start at once one makes it.
	made, err := renameio.TempFile(filepath.Dir(path), path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = made.Cleanup() }()
	if _, err := made.Write(key); err != nil {
		return nil, err
	}
	if err := made.Sync(); err != nil {
		return nil, err
	}
	if err := os.Link(made.Name(), path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return os.ReadFile(path)
		}
		return nil, err
	}
	return key, syncFolder(filepath.Dir(path))
}

const secretKeySize = 32

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// nameProjects makes the default project, and adds those of the configuration.
func nameProjects(ctx context.Context, eng *engine.Engine, state string, configured map[string]string, log *slog.Logger) error {
	host := engine.Caller{}
	existing, err := eng.Projects(ctx, host)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(existing, func(p jobs.Project) bool { return p.Name == engine.DefaultProject }) && configured[engine.DefaultProject] == "" {
		root := filepath.Join(state, engine.ProjectsFolder, engine.DefaultProject)
		err := os.MkdirAll(root, 0o700)
		if err := errors.Join(err, syncFolder(filepath.Dir(root)), syncFolder(state)); err != nil {
			return err // what is published there is safe only if the folder itself is
		}
		configured = maps.Clone(configured)
		if configured == nil {
			configured = map[string]string{}
		}
		configured[engine.DefaultProject] = root
	}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		err := eng.ReplaceProjects(ctx, host, []jobs.Project{{Name: name, Root: configured[name]}})
		if err != nil && name != engine.DefaultProject {
			log.Warn(leftOut, "project", name, "error", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ownKeeper keeps a copy of the keeper under its digest, so that an upgrade does
// not change the program under the attempts that were started with it. Without a
// keeper beside macexec, macexec plays it itself.
func ownKeeper(dir string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return nil, err
	}
	from, verb := filepath.Join(filepath.Dir(self), "macexec-keeper"), []string(nil)
	if _, err := os.Stat(from); err != nil {
		from, verb = self, []string{keeperVerb}
	}
	digest, err := digestOf(from)
	if err != nil {
		return nil, err
	}
	to := filepath.Join(dir, digest)
	if have, err := digestOf(to); err == nil && have == digest {
		return append([]string{to}, verb...), nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	in, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o700), renameio.WithExistingPermissions())
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Cleanup() }()
	if _, err := io.Copy(out, in); err != nil {
		return nil, err
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return nil, err
	}
	return append([]string{to}, verb...), nil
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest, _, err := files.Digest(context.Background(), f)
	return digest, err
}
