package executor_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

// TestG15_NothingIsExecutedTooLate: start_by passes while the keeper, or after the
// started record is durable the launcher, takes its time. Nothing is executed, and the
// exit record says so, also to a daemon that comes later.
func TestG15_NothingIsExecutedTooLate(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]executor.Limits{
		"hold": {}, "launch": {}, "hold, with the clock set back": {}, "launch, with the clock set back": {},
		"launch, of little memory": {Memory: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := lateBench{setup(t), strings.HasSuffix(name, "set back")}
			part, _, _ := strings.Cut(name, ",")
			// A host that is busy for longer than this has not come to the launcher.
			for n, patience := 1, 500*time.Millisecond; ; n, patience = n+1, 2*patience {
				by := time.Now().Add(patience)
				done, err := lateRun(b, n, part, by, limits)
				if part == "hold" && err == nil {
					t.Fatal("there is a started record, although the keeper itself came too late")
				}
				if part == "launch" && errors.Is(err, fs.ErrNotExist) && n < 8 {
					continue
				}
				if part == "launch" && err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(done); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the tool ran: %v", err)
				}
				found, err := b.fresh(boot).Inspect("j", n)
				if err != nil || found.Kind != executor.Exited || !found.Exit.NotStarted || !found.Exit.TooLate {
					t.Errorf("a later daemon finds %+v, %v", found, err)
				}
				return
			}
		})
	}
}

// lateBench is a bench on which the wall clock may have been set back.
type lateBench struct {
	*bench

	setBack bool
}

// lateRun makes an attempt whose keeper or launcher sets out only after start_by. It
// returns the file that the tool would make, and what reading the started record says.
func lateRun(b lateBench, n int, part string, by time.Time, limits executor.Limits) (done string, started error) {
	b.t.Helper()
	dir, file := b.x.AttemptDir("j", n), ""
	if part == "launch" {
		file = dir.Started()
	}
	x, err := executor.New(executor.Options{
		Root: b.root, BootSession: boot, Keeper: []string{self(), "slow", part, strconv.FormatInt(by.UnixNano(), 10), file},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	a, err := x.Prepare("j", n)
	if err != nil {
		b.t.Fatal(err)
	}
	done = filepath.Join(dir.Out(), "done")
	cmd := command("chmod", done)
	cmd.StartBy, cmd.StartWithin, cmd.Limits = by, time.Hour, limits
	if b.setBack { // then only the clock that nobody sets knows
		cmd.StartBy, cmd.StartWithin = by.Add(time.Hour), time.Until(by)
	}
	r, err := a.Start(cmd)
	if err != nil {
		b.t.Fatal(err)
	}
	e := b.exited(r)
	if !e.NotStarted || !e.TooLate || e.StoppedFor != keeper.StoppedForNothing || !strings.Contains(e.Error, "start_by") {
		b.t.Errorf("%+v, want not started: too late", e)
	}
	_, started = keeper.ReadStarted(dir)
	return done, started
}

// TestG15_InTime: a start_by that has not passed changes nothing, and neither that nor
// another failure of a start is told as too late.
func TestG15_InTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, cmd := range map[string]executor.Command{"runs": command("exit", "7"), "missing": {Argv: []string{"/nonexistent/tool"}}} {
		cmd.StartBy, cmd.StartWithin = time.Now().Add(time.Hour), time.Hour
		e := b.run(name, cmd)
		if e.TooLate || e.NotStarted != (name == "missing") || name == "runs" && e.Code != 7 {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
