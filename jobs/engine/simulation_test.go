package engine

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/macexec/macexec/jobs"
)

// TestSchedulerSimulated drives the scheduler through anything that can happen to it,
// and holds after each step what docs/scheduling.md says.
func TestSchedulerSimulated(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := map[string]int{"x": rapid.IntRange(1, 3).Draw(t, "x"), "y": rapid.IntRange(1, 2).Draw(t, "y")}
		s := newSchedule(sizes, 1)
		sim := &simulation{T: t, schedule: s, queued: map[string]bool{}, accepted: map[string]turn{}}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				j := sim.newJob(t)
				sim.queued[j.id] = true
				sim.step(func() { s.submit(j) })
			},
			"call that does not wait for locks": func(t *rapid.T) {
				j := sim.newJob(t)
				j.refuse = true
				sim.accepted[j.id] = j
				accept := rapid.Bool().Draw(t, "accept")
				sim.hold(j, accept)
			},
			"end": func(t *rapid.T) {
				i := sim.draw(t, len(s.running))
				sim.step(func() { s.end(i) })
			},
			"lose": func(t *rapid.T) {
				i := sim.draw(t, len(s.running))
				j := s.running[i]
				s.running = slices.Delete(s.running, i, i+1)
				sim.unknown = append(sim.unknown, j.id)
				sim.step(func() { s.lost(j.id); s.release(j.id) })
			},
			"resolve": func(t *rapid.T) {
				i := sim.draw(t, len(sim.unknown))
				id := sim.unknown[i]
				sim.unknown = slices.Delete(sim.unknown, i, i+1)
				sim.many(func() { s.remove(id) })
			},
			"queue again": func(t *rapid.T) {
				i := sim.draw(t, len(s.running))
				j := s.running[i]
				s.running = slices.Delete(s.running, i, i+1)
				sim.queued[j.id] = true
				if rapid.Bool().Draw(t, "after a pause") {
					sim.many(func() { s.rest(j.id); s.release(j.id) })
					sim.step(func() { s.submit(j) })
				} else {
					sim.many(func() { s.queueAgain(j.id); s.release(j.id) })
				}
			},
			"other links": func(t *rapid.T) {
				i := sim.draw(t, len(s.running))
				j := s.running[i]
				claims := drawClaims(t)
				sim.many(func() {
					if !s.relock(j.id, claims) {
						s.running = slices.DeleteFunc(s.running, func(r turn) bool { return r.id == j.id })
						sim.queued[j.id] = true
						s.release(j.id)
					}
				})
			},
			"cancel": func(t *rapid.T) {
				waiting := slices.Sorted(maps.Keys(sim.queued))
				id := waiting[sim.draw(t, len(waiting))]
				delete(sim.queued, id)
				sim.many(func() { s.remove(id) })
			},
			"restart": func(t *rapid.T) { sim.restart(t, sizes) },
			"pause":   func(*rapid.T) { sim.step(func() { s.pause(true) }) },
			"resume":  func(*rapid.T) { sim.many(func() { s.pause(false) }) },
			"time": func(t *rapid.T) {
				s.at = s.at.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			},
			"": func(*rapid.T) { sim.check() },
		})
		sim.many(func() { s.pause(false) })
		for len(s.running)+len(sim.unknown) > 0 {
			if len(s.running) > 0 {
				sim.many(func() { s.end(0) })
				continue
			}
			id := sim.unknown[0]
			sim.unknown = sim.unknown[1:]
			sim.many(func() { s.remove(id) })
		}
		if len(sim.queued) > 0 {
			t.Fatalf("never started: %v", slices.Sorted(maps.Keys(sim.queued)))
		}
		if len(s.turns) > 0 || len(s.locks) > 0 {
			t.Fatalf("left over: %v and %v", s.turns, s.locks)
		}
	})
}

// simulation is what a test knows of the jobs that it gave a scheduler.
type simulation struct {
	*rapid.T
	*schedule

	queued   map[string]bool
	accepted map[string]turn // as their records have them
	unknown  []string
}

func (sim *simulation) draw(t *rapid.T, n int) int {
	if n == 0 {
		t.Skip("there is none")
	}
	return rapid.IntRange(0, n-1).Draw(t, "which")
}

func (sim *simulation) newJob(t *rapid.T) turn {
	j := sim.job(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "principal"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "class"), rapid.IntRange(minPriority, maxPriority).Draw(t, "priority"))
	j.claims = drawClaims(t)
	sim.accepted[j.id] = j
	return j
}

func drawClaims(t *rapid.T) []claim {
	var claims []claim
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"k", "l", "m"}), 0, 3, rapid.ID).Draw(t, "locks") {
		claims = addClaim(claims, claim{key: key, name: "file " + key, mode: lockMode(rapid.IntRange(0, lockModes-1).Draw(t, "mode"))})
	}
	return claims
}

// hold is a call that has its locks at once or is refused.
func (sim *simulation) hold(j turn, accept bool) {
	o, held := sim.scheduler.hold(j)
	if !held {
		_, by := sim.locks.blocked(&j)
		if by == nil || o.name == "" || (o.jobID == by.id) != (by.principal == j.principal) || o.state != by.state {
			sim.Fatalf("%s is refused for %+v, and %+v is in the way", j.id, o, by)
		}
		return
	}
	if !accept {
		sim.step(func() { sim.remove(j.id) })
		return
	}
	sim.queued[j.id] = true
	sim.step(func() { sim.add(j) })
}

// restart is a new scheduler, which is told what the records say. Since then the locks of
// those that wait may be others.
func (sim *simulation) restart(t *rapid.T, sizes map[string]int) {
	known := func(id string, state jobs.State) turn {
		j := sim.accepted[id]
		j.state, j.claims = state, slices.Clone(sim.turns[id].claims)
		for i := range j.claims {
			j.claims[i].waits = false
		}
		return j
	}
	var running, unknown, queued []turn
	for _, j := range sim.running {
		running = append(running, known(j.id, jobs.StateRunning))
	}
	for _, id := range sim.unknown {
		unknown = append(unknown, known(id, jobs.StateUnknown))
	}
	for _, id := range slices.Sorted(maps.Keys(sim.queued)) {
		j := known(id, jobs.StateQueued)
		if rapid.Bool().Draw(t, "other links") {
			j.claims = drawClaims(t)
		}
		queued = append(queued, j)
	}
	paused := sim.paused.Load()
	sim.scheduler = newScheduler(sizes, 1, sim.clock.now)
	sim.pause(paused)
	for _, j := range running {
		sim.takeUp(j)
	}
	for _, j := range unknown {
		sim.keep(j)
	}
	for _, j := range queued {
		held := false
		if j.refuse {
			_, held = sim.scheduler.hold(j)
		}
		if !held {
			waits := j
			waits.refuse = false
			sim.expect(waits)
		}
		sim.add(j)
	}
	sim.many(sim.open)
}

// step does what gives one class one slot at most, and holds who got it.
func (sim *simulation) step(do func()) {
	before := map[string]map[string]time.Duration{} // class → principal → used, of those that wanted slots
	for name, c := range sim.classes {
		before[name] = map[string]time.Duration{}
		for _, sh := range c.wanting {
			before[name][sh.principal] = sh.usage(sim.at)
		}
	}
	for _, j := range sim.many(do) {
		mine, wanted := before[j.class][j.principal]
		for p, used := range before[j.class] {
			// A principal whose jobs were passed over for a lock wants no slot for now.
			if wanted && used < mine && len(sim.classes[j.class].shares[p].queue) > 0 {
				sim.Fatalf("%s started, although %s has used %v and %s %v", j.id, p, used, j.principal, mine)
			}
		}
	}
}

// many does what lets any number of jobs start.
func (sim *simulation) many(do func()) []turn {
	reserved := map[string][]*turn{}
	for key, k := range sim.locks {
		for _, w := range k.waiters {
			reserved[key] = append(reserved[key], w...)
		}
	}
	do()
	got := sim.started()
	for _, j := range got {
		delete(sim.queued, j.id)
	}
	for _, j := range got {
		for id := range sim.queued {
			if q := sim.turns[id]; q.place == inQueue && q.principal == j.principal && q.class == j.class && q.rank.compare(j.rank) < 0 {
				sim.Fatalf("%s started before %s", j.id, q.id)
			}
		}
		for _, c := range j.claims {
			for _, w := range reserved[c.key] {
				for _, wc := range w.claims {
					if wc.key == c.key && wc.waits && wc.mode.clashes(c.mode) && w.rank.compare(j.rank) < 0 && !j.refuse {
						sim.Fatalf("%s started although %s is before it and has reserved %s", j.id, w.id, c.key)
					}
				}
			}
		}
	}
	return got
}

func (sim *simulation) check() {
	sim.checkSlots()
	sim.checkLocks()
	places := map[string][]int{}
	for id := range sim.queued {
		q, w := sim.turns[id], sim.waiting(id)
		if q.refuse && !q.holds {
			sim.Fatalf("%s does not wait for its locks, and has none", id)
		}
		if w == nil || w.Position < 1 {
			sim.Fatalf("%s waits for %+v", id, w)
		}
		c := sim.classes[q.class]
		if q.place == inQueue {
			places[q.class] = append(places[q.class], c.inLine(q, sim.at))
		}
		want := jobs.WaitingFor{Kind: jobs.WaitSlot, Detail: q.class, Position: w.Position}
		claim, by := sim.locks.blocked(q)
		switch {
		case sim.paused.Load():
			want = jobs.WaitingFor{Kind: jobs.WaitPaused, Position: w.Position}
		case q.place == aside && by == nil:
			sim.Fatalf("%s waits for a lock although nothing is in the way", id)
		case q.place == inQueue && c.used < c.size:
			sim.Fatalf("%s waits although a slot is free", id)
		case q.place == aside, by != nil && by.state == jobs.StateUnknown:
			want = jobs.WaitingFor{Kind: jobs.WaitLock, Detail: claim.name, JobState: by.state, Position: w.Position}
			if by.principal == q.principal {
				want.JobID = by.id
			}
		}
		if diff := cmp.Diff(want, *w); diff != "" {
			sim.Fatalf("%s waits for (-want +got):\n%s", id, diff)
		}
	}
	for class, taken := range places {
		slices.Sort(taken)
		for i, place := range taken {
			if place != i+1 {
				sim.Fatalf("the places in line for %s are %v", class, taken)
			}
		}
	}
}

// checkSlots holds that nothing runs without a slot, and no slot is used twice.
func (sim *simulation) checkSlots() {
	used := map[string]int{}
	for _, j := range sim.running {
		used[j.class]++
	}
	for _, slot := range sim.slots() {
		if slot.Used != used[slot.Class] || slot.Used > slot.Size {
			sim.Fatalf("%d jobs of class %s run; %+v", used[slot.Class], slot.Class, slot)
		}
		delete(used, slot.Class)
	}
	if len(used) > 0 {
		sim.Fatalf("classes without slots: %v", used)
	}
}

// checkLocks holds that what runs or is unknown has its locks, and that no two have
// locks that clash.
func (sim *simulation) checkLocks() {
	using := slices.Clone(sim.unknown)
	using = append(using, ids(sim.running)...)
	for i, id := range using {
		a := sim.turns[id]
		if !a.holds {
			sim.Fatalf("%s has no locks", id)
		}
		for _, other := range using[:i] {
			for _, c := range a.claims {
				for _, d := range sim.turns[other].claims {
					if c.key == d.key && c.mode.clashes(d.mode) {
						sim.Fatalf("%s and %s both have %s", id, other, c.key)
					}
				}
			}
		}
	}
}

// TestLockModes holds which uses of one thing exclude each other.
func TestLockModes(t *testing.T) {
	t.Parallel()
	want := map[[2]lockMode]bool{
		{intentShared, exclusive}: true, {intentExclusive, exclusive}: true, {shared, exclusive}: true,
		{exclusive, exclusive}: true, {intentExclusive, shared}: true,
	}
	for a := range lockMode(lockModes) {
		for b := range lockMode(lockModes) {
			if got := a.clashes(b); got != (want[[2]lockMode{a, b}] || want[[2]lockMode{b, a}]) {
				t.Errorf("%d and %d clash: %v", a, b, got)
			}
			for c := range lockMode(lockModes) {
				if both := a.with(b); (a.clashes(c) || b.clashes(c)) && !both.clashes(c) {
					t.Errorf("%d with %d does not clash with %d, which one of them does", a, b, c)
				}
			}
		}
	}
}
