package engine

import (
	"cmp"
	"slices"

	"github.com/macexec/macexec/jobs"
)

// lockMode is how a job uses what a lock stands for: the textbook's IS, IX, S and X.
// Who reads a path has it shared, who writes it exclusive; the folders that it lies in
// are locked with the intent to do so inside, so that a job which reads or writes a
// whole folder clashes with those that are at work in it.
type lockMode int // kept in the records of jobs that run: a number never changes its meaning

const (
	intentShared lockMode = iota
	intentExclusive
	shared
	exclusive
	lockModes = iota
)

// clashes reports whether two jobs may not have one lock at the same time.
func (m lockMode) clashes(o lockMode) bool {
	if m > o {
		m, o = o, m
	}
	return o == exclusive || m == intentExclusive && o == shared
}

// with is the mode of a job that uses one thing in two ways. What the textbook calls
// SIX, shared with the intent to write inside, is taken as exclusive, which excludes
// little more.
func (m lockMode) with(o lockMode) lockMode {
	if m.clashes(o) {
		return exclusive
	}
	return max(m, o)
}

// claim is what a job needs of one lock.
type claim struct {
	key   string
	mode  lockMode
	name  string // what the caller knows it by: the path, or the context
	waits bool   // the job was passed over for it and has reserved it
}

// addClaim adds to a job's claims, which are by key and have each key once.
func addClaim(claims []claim, c claim) []claim {
	i, found := slices.BinarySearchFunc(claims, c.key, func(a claim, key string) int { return cmp.Compare(a.key, key) })
	if found {
		claims[i].mode = claims[i].mode.with(c.mode)
		return claims
	}
	return slices.Insert(claims, i, c)
}

// locks is who has what, and who waits for it. A job takes all its locks at once or
// none. One that cannot is passed over: it reserves the locks that it was passed over
// for, until it has them, and by that keeps out every job behind it by rank. As a
// reservation binds only those behind, no two jobs wait for each other; and as every
// job is the first by rank one day, each gets what it needs.
type locks map[string]*lock

// lock is one thing that jobs use.
type lock struct {
	key     string
	holders []holder
	held    [lockModes]int     // how many of the holders there are, by mode
	waiters [lockModes][]*turn // who has reserved it, by mode and rank
}

type holder struct {
	t    *turn
	mode lockMode
}

func (l locks) at(key string) *lock {
	k := l[key]
	if k == nil {
		k = &lock{key: key}
		l[key] = k
	}
	return k
}

// heldAgainst reports whether somebody holds a lock in a mode that clashes.
func (k *lock) heldAgainst(mode lockMode) bool {
	for m, n := range k.held {
		if n > 0 && mode.clashes(lockMode(m)) {
			return true
		}
	}
	return false
}

func (k *lock) unused() bool {
	return len(k.holders) == 0 && !slices.ContainsFunc(k.waiters[:], func(w []*turn) bool { return len(w) > 0 })
}

// inTheWay is a job that keeps another from a lock: one that holds it, an unknown one
// before others, or the first that has reserved it and is before the other by rank.
func (k *lock) inTheWay(t *turn, mode lockMode) *turn {
	if k == nil {
		return nil
	}
	if !k.heldAgainst(mode) {
		return k.senior(t, mode)
	}
	var found *turn
	for _, h := range k.holders {
		if h.mode.clashes(mode) && (found == nil || h.t.state == jobs.StateUnknown) {
			found = h.t
		}
	}
	return found
}

// senior is the first of those before a job by rank that have reserved a lock.
func (k *lock) senior(t *turn, mode lockMode) *turn {
	var first *turn
	for m, w := range k.waiters {
		if len(w) == 0 || !mode.clashes(lockMode(m)) || w[0].rank.compare(t.rank) >= 0 {
			continue
		}
		if first == nil || w[0].rank.compare(first.rank) < 0 {
			first = w[0]
		}
	}
	return first
}

// ahead counts those that have reserved a lock and have it before a job.
func (k *lock) ahead(t *turn, mode lockMode) int {
	n := 0
	for m, w := range k.waiters {
		if mode.clashes(lockMode(m)) {
			i, _ := findTurn(w, t.rank)
			n += i
		}
	}
	return n
}

// acquire gives a job all its locks, or notes for which ones it was passed over. It
// reports whether the job has them.
func (l locks) acquire(t *turn) bool {
	if t.holds {
		return true
	}
	for i := range t.claims {
		c := &t.claims[i]
		k := l[c.key]
		if k.inTheWay(t, c.mode) == nil {
			continue
		}
		if !c.waits {
			at, _ := findTurn(k.waiters[c.mode], t.rank)
			k.waiters[c.mode] = slices.Insert(k.waiters[c.mode], at, t)
			c.waits = true
		}
		if t.passedFor == nil {
			t.passedFor = c
		}
	}
	if t.passedFor != nil {
		return false
	}
	l.seize(t)
	return true
}

// seize gives a job all its locks, whoever else has them.
func (l locks) seize(t *turn) {
	if t.holds {
		return
	}
	t.holds, t.passedFor = true, nil
	for i := range t.claims {
		c := &t.claims[i]
		k := l.at(c.key)
		k.holders = append(k.holders, holder{t, c.mode})
		k.held[c.mode]++
		if c.waits {
			k.waiters[c.mode] = without(k.waiters[c.mode], t)
			c.waits = false
		}
	}
}

// drop takes everything back that a job holds and has reserved, and returns the jobs
// that may have what they wait for now. They keep their reservations.
func (l locks) drop(t *turn) []*turn {
	var freed []*turn
	held := t.holds
	t.holds, t.passedFor = false, nil
	for i := range t.claims {
		c := &t.claims[i]
		if !held && !c.waits {
			continue
		}
		k := l[c.key]
		if held {
			k.holders = slices.DeleteFunc(k.holders, func(h holder) bool { return h.t == t })
			k.held[c.mode]--
		} else {
			k.waiters[c.mode] = without(k.waiters[c.mode], t)
			c.waits = false
		}
		freed = k.free(c.mode, freed)
		if k.unused() {
			delete(l, c.key)
		}
	}
	return freed
}

// free finds those that the end of a use in one mode lets go on.
func (k *lock) free(ended lockMode, freed []*turn) []*turn {
	for m, w := range k.waiters {
		mode := lockMode(m)
		if len(w) == 0 || !mode.clashes(ended) || k.heldAgainst(mode) {
			continue
		}
		for _, t := range w {
			if k.senior(t, mode) != nil {
				break
			}
			if t.passedFor != nil && t.passedFor.key == k.key {
				t.passedFor = nil
				freed = append(freed, t)
			}
			if mode == exclusive {
				break // it keeps out those behind it
			}
		}
	}
	return freed
}

func findTurn(list []*turn, r rank) (int, bool) {
	return slices.BinarySearchFunc(list, r, func(t *turn, r rank) int { return t.rank.compare(r) })
}

func without(list []*turn, t *turn) []*turn {
	if i, found := findTurn(list, t.rank); found {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// blocked says what keeps a job from its locks, if anything does; an unknown job is
// told of before others, as it does not end by itself.
func (l locks) blocked(t *turn) (c *claim, by *turn) {
	if t.holds {
		return nil, nil
	}
	for i := range t.claims {
		in := l[t.claims[i].key].inTheWay(t, t.claims[i].mode)
		if in != nil && (by == nil || in.state == jobs.StateUnknown && by.state != jobs.StateUnknown) {
			c, by = &t.claims[i], in
		}
	}
	return c, by
}

// obstacle is what keeps a job from a lock, as its caller may see it.
type obstacle struct {
	name  string // the path or the context, as the call names it
	jobID string // empty: the job is another principal's, which stays hidden (promise G10)
	state jobs.State
}

func (t *turn) obstacle(c *claim, by *turn) obstacle {
	o := obstacle{name: c.name, state: by.state}
	if by.principal == t.principal {
		o.jobID = by.id
	}
	return o
}
