package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// What lies in the trash of a project was replaced or removed on somebody's word, and a
// person may want it back; so it is kept for long, but not for ever. Only what a job of
// this host moved there goes, and only once that job has ended: the plan of an open one is
// proved, finished or taken back by what is in the trash, and that of an unknown one looked
// at by a person.

// trashed is something in the trash of a project that may be removed.
type trashed struct {
	files.Trashed

	size int64
}

// pruneTrash removes what is in the trash for too long or, the oldest first, too much. A
// project that is not there is skipped.
func (e *Engine) pruneTrash(ctx context.Context, r Retention, how pruning, got *Pruned) error {
	before, total := how.now.Add(-r.TrashAge), int64(0)
	due := map[string][]files.Trashed{} // by project
	type young struct {
		trashed

		project string
	}
	var rest []young
	failed := e.eachTrash(ctx, anyProject, func(project string, bin *files.Trash) error {
		return e.eachTrashed(ctx, bin, func(one files.Trashed) error {
			old := one.At.Before(before)
			if !old && r.TrashBytes == 0 {
				return nil
			}
			size, there, err := bin.Measure(ctx, one)
			if err != nil {
				return err
			}
			needed := e.needsTrash(ctx, one.Job)
			switch {
			case (old || !there) && !needed: // a note alone was left by a crash
				due[project] = append(due[project], one)
			case there:
				total += size
				if !needed {
					rest = append(rest, young{trashed{one, size}, project})
				}
			}
			return nil
		})
	})
	if r.TrashBytes > 0 {
		slices.SortFunc(rest, func(a, b young) int { return a.At.Compare(b.At) })
		for _, one := range rest {
			if total <= r.TrashBytes {
				break
			}
			total -= one.size
			due[one.project] = append(due[one.project], one.Trashed)
		}
	}
	some := func(project string) bool { return len(due[project]) > 0 }
	removed := e.eachTrash(ctx, some, func(project string, bin *files.Trash) error {
		return e.emptyTrash(ctx, project, bin, due[project], how, got)
	})
	return errors.Join(failed, removed)
}

// emptyTrash removes some of what is in the trash of a project. The journal tells of it
// first (promise G9).
func (e *Engine) emptyTrash(ctx context.Context, project string, bin *files.Trash, due []files.Trashed, how pruning, got *Pruned) error {
	n, size := 0, int64(0)
	for _, one := range due {
		bytes, there, err := bin.Measure(ctx, one)
		if err == nil && there {
			n++
			size += bytes
		}
	}
	if how.dry {
		got.Trash += n
		got.TrashBytes += size
		return nil
	}
	if n > 0 {
		data, err := json.Marshal(map[string]any{"project": project, "count": n, "bytes": size})
		if err != nil {
			return jobs.Errorf(jobs.CodeInternal, "describe what is removed from a trash: %w", err)
		}
		message := fmt.Sprintf("what is kept no longer in the trash of project %s is removed: %d with %d bytes", project, n, size)
		if err := e.store.Append(ctx, jobs.Entry{Kind: jobs.EntryHost, Message: message, Data: data}); err != nil {
			return err
		}
	}
	var errs []error
	for _, one := range due {
		if ctx.Err() != nil {
			break
		}
		bytes, gone, err := bin.Remove(ctx, one)
		if gone {
			got.Trash++
			got.TrashBytes += bytes
		}
		errs = append(errs, err)
	}
	return firstOf(append(errs, bin.Drop()))
}

// firstOf is the first of some errors, and how many more there are.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	default:
		return fmt.Errorf("%w; and %d more", errs[0], len(errs)-1)
	}
}

// eachTrash opens the trash of every project that is there and has one, each folder once,
// whatever its names are. An error is told with the project, and stops no other.
func (e *Engine) eachTrash(ctx context.Context, wanted func(project string) bool, do func(project string, bin *files.Trash) error) error {
	projects, err := e.store.Projects(ctx)
	if err != nil {
		return err
	}
	var errs []error
	var seen []*files.Trash
	for _, p := range projects {
		if ctx.Err() != nil {
			break
		}
		if !wanted(p.Name) {
			continue
		}
		err := inTrash(p.Root, func(bin *files.Trash) error {
			if slices.ContainsFunc(seen, bin.Same) {
				return nil
			}
			seen = append(seen, bin)
			return do(p.Name, bin)
		})
		if err != nil && ctx.Err() == nil {
			errs = append(errs, fmt.Errorf("the trash of project %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func anyProject(string) bool { return true }

func inTrash(root string, do func(*files.Trash) error) error {
	r, err := files.OpenRoot(root)
	if isNotExist(err) || errors.Is(err, files.ErrNotFolder) {
		return nil // its disk is not mounted, perhaps
	}
	if err != nil {
		return err
	}
	defer r.Close()
	bin, err := r.OpenTrash()
	if err != nil || bin == nil {
		return err
	}
	defer bin.Close()
	return do(bin)
}

// eachTrashed goes through what jobs of this host have moved to a trash.
func (e *Engine) eachTrashed(ctx context.Context, bin *files.Trash, do func(files.Trashed) error) error {
	list, err := bin.List(ctx)
	errs := []error{err}
	for _, one := range list {
		if ctx.Err() != nil {
			break
		}
		if hostOf(one.Job) == e.store.HostID() {
			errs = append(errs, do(one))
		}
	}
	return firstOf(errs)
}

// needsTrash reports whether a job may still need what it has moved to the trash. One
// without a record had ended when that was removed.
func (e *Engine) needsTrash(ctx context.Context, id string) bool {
	job, err := e.store.Get(ctx, id)
	return jobs.CodeOf(err) != jobs.CodeJobNotFound && (err != nil || !job.State.Terminal())
}

// TrashUse is what a project's trash holds of what jobs of this host moved there.
type TrashUse struct {
	Project string
	Count   int64
	Bytes   int64
	Problem string // why that cannot be told; empty: it can
}

// trashUse measures the trash of every project.
func (e *Engine) trashUse(ctx context.Context) ([]TrashUse, error) {
	projects, err := e.store.Projects(ctx)
	if err != nil {
		return nil, err
	}
	var list []TrashUse
	for _, p := range projects {
		use := TrashUse{Project: p.Name}
		err := inTrash(p.Root, func(bin *files.Trash) error {
			return e.eachTrashed(ctx, bin, func(one files.Trashed) error {
				size, there, err := bin.Measure(ctx, one)
				if there {
					use.Count++
					use.Bytes += size
				}
				return err
			})
		})
		if err != nil {
			use.Problem = err.Error()
		}
		list = append(list, use)
	}
	return list, nil
}
