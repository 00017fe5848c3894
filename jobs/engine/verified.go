package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/macexec/macexec/executor/files"
	"github.com/macexec/macexec/jobs"
)

// verified notes which files were found to have which digest, so that a download
// that is taken up again forty times does not read the file forty times before. A
// note holds while the file's device, inode, size and times do. Nobody can set the
// time of the inode's change, but two changes in one tick of the file system's clock
// look alike; so a file that changed just now is not noted.
type verified struct {
	mu    sync.Mutex
	notes map[fileState]string
}

// fileState is what cannot stay the same when a file changes.
type fileState struct {
	device, inode uint64
	size          int64
	mod, change   int64 // nanoseconds
}

const (
	mostVerified = 1024
	// settling is longer than the coarsest clock of a file system.
	settling = 2 * time.Second
)

func stateOf(f files.Facts) fileState {
	return fileState{f.Device, f.Inode, f.Size, f.ModTime.UnixNano(), f.ChangeTime.UnixNano()}
}

// digest returns the digest of f, which is at its beginning before and after.
func (v *verified) digest(ctx context.Context, f *os.File) (string, error) {
	began := time.Now()
	before, err := files.FactsOf(f)
	if err != nil {
		return "", err
	}
	v.mu.Lock()
	known, ok := v.notes[stateOf(before)]
	v.mu.Unlock()
	if ok {
		return known, nil
	}
	digest, _, err := files.Digest(ctx, f)
	if err != nil {
		return "", err
	}
	after, err := files.FactsOf(f)
	if err != nil {
		return "", err
	}
	if stateOf(before) == stateOf(after) && began.Sub(after.ChangeTime) > settling {
		v.note(stateOf(after), digest)
	}
	_, err = f.Seek(0, io.SeekStart)
	return digest, err
}

func (v *verified) note(s fileState, digest string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.notes == nil {
		v.notes = map[fileState]string{}
	}
	for old := range v.notes {
		if len(v.notes) < mostVerified {
			break
		}
		delete(v.notes, old) // whichever: it is only read once more
	}
	v.notes[s] = digest
}

// unchanged checks that a file in a project is still what a job made.
func (e *Engine) unchanged(ctx context.Context, f *os.File, job *jobs.Job, a jobs.Artifact) error {
	digest, err := e.verified.digest(ctx, f)
	if err != nil {
		return fmt.Errorf("%s in project %s: %w", a.Path, a.Project, err)
	}
	if digest != a.SHA256 {
		return jobs.Errorf(jobs.CodeArtifactChanged, "%s in project %s is no longer what job %s made", a.Path, a.Project, job.ID).WithJob(job.ID)
	}
	return nil
}
