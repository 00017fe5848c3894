package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/macexec/macexec/executor/keeper"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// scene is a job whose tool waits at the gate, and what a row of the recovery table
// does to it.
type scene struct {
	*daemon

	l    *ledgers
	open func()
	id   string
	was  keeper.Started
}

func (s *scene) dir() keeper.Dir { return s.attempt(s.id, 1) }

// killAll ends daemon, keeper and tool, in this order, so that nobody writes down
// the end of the next.
func (s *scene) killAll() {
	s.kill()
	kill9(s.t, s.was.Keeper())
	kill9(s.t, s.was.Tool())
}

// row is a row of the table "what recovery may conclude".
type row struct {
	found string
	// happen takes the world there; the daemon is dead when it returns.
	happen func(s *scene)
	// rerun: the table says "queued again" for every tool, or for one that leaves
	// nothing behind; lost: for one with outside effects it says "unknown".
	rerun, lost bool
	message     string // what an unknown job says of itself
}

func rows() []row {
	return []row{
		{found: "lock_held", happen: func(s *scene) { s.kill() }},
		{found: "exit_record", happen: func(s *scene) {
			s.kill()
			s.open()
			awaitDead(s.t, s.was.Keeper())
		}},
		{found: "started_and_alive", rerun: true, lost: true, message: "pids", happen: func(s *scene) {
			s.kill()
			kill9(s.t, s.was.Keeper())
		}},
		{found: "started_and_nothing_alive", rerun: true, lost: true, message: "no record says", happen: func(s *scene) { s.killAll() }},
		{found: "other_boot", rerun: true, lost: true, message: "reboot", happen: func(s *scene) {
			s.killAll()
			changeBoot(s.t, s.dir())
		}},
		{found: "folder_gone", rerun: true, lost: true, message: "folder is gone", happen: func(s *scene) {
			s.killAll()
			if err := os.RemoveAll(string(s.dir())); err != nil {
				s.t.Fatal(err)
			}
		}},
	}
}

// changeBoot lets a started record be of another boot session.
func changeBoot(t *testing.T, dir keeper.Dir) {
	t.Helper()
	changeStarted(t, dir, "boot_session", "00000000-0000-0000-0000-000000000000")
}

// changeStarted changes one field of a started record.
func changeStarted(t *testing.T, dir keeper.Dir, field string, value any) {
	t.Helper()
	content, err := os.ReadFile(dir.Started())
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(content, &record); err != nil {
		t.Fatal(err)
	}
	record[field] = value
	if content, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Started(), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// G4, G5, G7: each row of the recovery table, for each kind of effects, with real
// processes.
func TestG4_RecoveryTable(t *testing.T) {
	t.Parallel()
	for _, r := range rows() {
		for _, effects := range []string{none, staged, external} {
			t.Run(r.found+"/"+effects, func(t *testing.T) {
				t.Parallel()
				d, l := startDaemon(t), newLedgers(t)
				s := &scene{daemon: d, l: l, open: l.gate("a")}
				req := call("k", "ledger_"+effects, l.args("a", "others", "gate", "print:done"))
				s.id = d.submitRun(req).GetId()
				l.await("a", "looked", 1)
				s.was = d.started(s.id, 1)
				r.happen(s)
				d.start()
				switch {
				case effects == external && r.lost:
					s.wantUnknown(req, r.message)
				case r.rerun:
					s.wantSecondAttempt()
				default:
					if r.found == "lock_held" {
						s.open()
					}
					s.wantFirstAttempt()
				}
			})
		}
	}
}

// wantFirstAttempt: nothing was started again.
func (s *scene) wantFirstAttempt() {
	s.t.Helper()
	job := s.wait(s.id, completed)
	s.l.wantStarts("a", 1)
	if len(job.GetAttempts()) != 1 || job.GetAttempts()[0].GetStarted().GetPid() != int64(s.was.Pid) {
		s.t.Errorf("attempts %v, want the one of process %d", job.GetAttempts(), s.was.Pid)
	}
}

// wantSecondAttempt: a second one began when nothing of the first was left.
func (s *scene) wantSecondAttempt() {
	s.t.Helper()
	s.l.await("a", "looked", 2)
	if alive := s.l.lines("a", "alive"); len(alive) > 0 {
		s.t.Fatalf("the second attempt began while process %v of the first still lived", alive)
	}
	s.open()
	job := s.wait(s.id, completed)
	s.l.wantStarts("a", 2)
	if len(job.GetAttempts()) != 2 || job.GetAttempts()[0].GetLost() == "" {
		s.t.Errorf("attempts %v, want two and the first one lost", job.GetAttempts())
	}
}

// wantUnknown: the job stays unknown over restarts, is never run again, and a
// person's word ends it, once.
func (s *scene) wantUnknown(req *macexecv1.SubmitJobRequest, message string) {
	s.t.Helper()
	job := s.wait(s.id, unknown)
	if !strings.Contains(job.GetMessage(), message) || !strings.Contains(job.GetMessage(), "look at: the ledger") || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_POSSIBLE {
		s.t.Errorf("the job says %q and side effect %s, want %q and possible", job.GetMessage(), job.GetSideEffect(), message)
	}
	if message == "pids" {
		if !s.was.Tool().Alive() || !strings.Contains(job.GetMessage(), strconv.Itoa(s.was.Pid)) {
			s.t.Errorf("the tool %d lives: %v; the job says %q", s.was.Pid, s.was.Tool().Alive(), job.GetMessage())
		}
	}
	for range 2 {
		s.kill()
		s.start()
		s.wait(s.id, unknown)
	}
	if code, output := s.macexec("jobs", "wait", s.id); code != 6 {
		s.t.Errorf("macexec jobs wait exits with %d, want 6: %s", code, output)
	}
	if again := s.submit(req); again.GetId() != s.id || again.GetState() != unknown {
		s.t.Errorf("the same call again is job %s %s, want %s unknown", again.GetId(), again.GetState(), s.id)
	}
	resolve := &macexecv1.ResolveJobRequest{Id: s.id, State: failed, Reason: "looked, and it is not there"}
	resp, err := s.Jobs.ResolveJob(s.context(), resolve)
	if err != nil {
		s.t.Fatal(err)
	}
	if j := resp.GetJob(); j.GetState() != failed || j.GetEndReason() != macexecv1.EndReason_END_REASON_RESOLVED {
		s.t.Errorf("resolved as %s (%s)", j.GetState(), j.GetEndReason())
	}
	_, err = s.Jobs.ResolveJob(s.context(), resolve)
	wantCode(s.t, err, "JOB_STATE_CONFLICT")
	if again := s.submit(req); again.GetId() != s.id || again.GetState() != failed || !again.GetReplayed() {
		s.t.Errorf("the same call again is job %s %s, want %s failed", again.GetId(), again.GetState(), s.id)
	}
	s.l.wantStarts("a", 1)
}

// G4: a keeper that died before it wrote down a start has started nothing, so the
// job is queued again whatever its tool touches. The keeper is a program that kills
// its daemon and ends.
func TestG4_AKeeperThatStartedNothing(t *testing.T) {
	t.Parallel()
	for _, effects := range []string{none, staged, external} {
		t.Run(effects, func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t), newLedgers(t)
			keepers, err := filepath.Glob(filepath.Join(d.state, "keepers", "*"))
			if err != nil || len(keepers) != 1 {
				t.Fatalf("keepers %v: %v", keepers, err)
			}
			deadly := func() {
				// Another file in its place: one that runs cannot be written.
				if err := os.WriteFile(keepers[0]+".new", []byte("#!/bin/sh\nkill -9 $PPID\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(keepers[0]+".new", keepers[0]); err != nil {
					t.Fatal(err)
				}
			}
			req := call("k", "ledger_"+effects, l.args("a"))
			if effects == external {
				held := d.submit(req)
				deadly()
				// The answer may come before the daemon's end, or not.
				_, _ = d.Jobs.ApproveJob(d.context(), &macexecv1.ApproveJobRequest{Id: held.GetId()})
			} else {
				deadly()
				_, _ = d.Jobs.SubmitJob(d.context(), req)
			}
			d.awaitEnd()
			l.wantStarts("a", 0)
			d.start()
			job := d.wait(d.submit(req).GetId(), completed)
			l.wantStarts("a", 1)
			if len(job.GetAttempts()) != 2 || job.GetAttempts()[0].GetStarted() != nil {
				t.Errorf("attempts %v, want two and no start of the first", job.GetAttempts())
			}
		})
	}
}

// G4: the keeper alone is killed while daemon and tool live.
func TestG4_KeeperKilled(t *testing.T) {
	t.Parallel()
	for _, effects := range []string{none, staged, external} {
		t.Run(effects, func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t), newLedgers(t)
			s := &scene{daemon: d, l: l, open: l.gate("a")}
			req := call("k", "ledger_"+effects, l.args("a", "others", "deaf", "gate"))
			s.id = d.submitRun(req).GetId()
			l.await("a", "looked", 1)
			s.was = d.started(s.id, 1)
			kill9(t, s.was.Keeper())
			if effects == external {
				s.wantUnknown(req, "pids")
				return
			}
			s.wantSecondAttempt()
		})
	}
}

// G5: the attempts of a job are bounded.
func TestG5_LostAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "limits: {max_attempts: 2}"), newLedgers(t)
	l.gate("a")
	id := d.submit(call("k", "ledger_none", l.args("a", "gate"))).GetId()
	for n := range 2 {
		l.await("a", "begin", n+1)
		kill9(t, d.started(id, n+1).Keeper())
	}
	job := d.wait(id, failed)
	if job.GetEndReason() != macexecv1.EndReason_END_REASON_ATTEMPTS_EXHAUSTED || job.GetSideEffect() != macexecv1.SideEffect_SIDE_EFFECT_NONE {
		t.Errorf("it ended by %s with side effect %s", job.GetEndReason(), job.GetSideEffect())
	}
	l.wantStarts("a", 2)
}

// G7: a daemon that is told to stop, or dies, leaves its jobs to their keepers, and
// the next one takes them up.
func TestG7_JobsGoOnWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			d, l := startDaemon(t, "slots: {ledger: 5}"), newLedgers(t)
			const jobs = 5
			var ids []string
			var opens []func()
			for i := range jobs {
				name := fmt.Sprintf("job%d", i)
				opens = append(opens, l.gate(name))
				req := call(name, "ledger_"+[]string{none, staged, external}[i%3], l.args(name, "gate", "print:done"))
				ids = append(ids, d.submitRun(req).GetId())
			}
			for i := range jobs {
				l.await(fmt.Sprintf("job%d", i), "begin", 1)
			}
			d.end(signal)
			for i, open := range opens[:3] { // these end while no daemon is there
				open()
				l.await(fmt.Sprintf("job%d", i), "end", 1)
			}
			d.start()
			for _, open := range opens[3:] {
				open()
			}
			for i, id := range ids {
				if job := d.wait(id, completed); len(job.GetAttempts()) != 1 {
					t.Errorf("job %d has %d attempts, want 1", i, len(job.GetAttempts()))
				}
				l.wantStarts(fmt.Sprintf("job%d", i), 1)
			}
		})
	}
}
