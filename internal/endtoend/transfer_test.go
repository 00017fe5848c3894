package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// transferSize is how much TestTransfersOverABadLine moves, and how often its line is
// cut: MACEXEC_TRANSFER_MIB is the size in MiB.
func transferSize(t *testing.T) (size, every int64) {
	t.Helper()
	text := os.Getenv("MACEXEC_TRANSFER_MIB")
	if text == "" {
		return 64 << 20, 8 << 20
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 64 {
		t.Fatalf("MACEXEC_TRANSFER_MIB is %q, and must be a number of MiB from 64 on", text)
	}
	return n << 20, 50_000_000
}

// noise is content that compresses to nothing less and can be made again.
func noise(t *testing.T, path string, size int64) (digest string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8([32]byte{7}), size); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// command is a run of the command line over a line.
type command struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	errs  bytes.Buffer
	ended chan error
}

func (d *daemon) over(l *line, args ...string) *command {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.t.Context()), 10*patience)
	d.t.Cleanup(cancel)
	c := &command{ended: make(chan error, 1)}
	c.cmd = exec.CommandContext(ctx, filepath.Join(built.bin, "macexec"), append(args, "-o", "json", "--address", "unix:"+l.path)...)
	c.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + d.state}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	if err := c.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	return c
}

// peak is the most memory that a process that has ended ever had, in MiB.
func (c *command) peak() int64 {
	usage, ok := c.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return usage.Maxrss >> 20
	}
	return usage.Maxrss >> 10
}

// peak is the most memory that the daemon ever had, in MiB; 0 where it cannot be told.
func (d *daemon) peak() int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", d.process.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return n >> 10
		}
	}
	return 0
}

// A file goes up and comes down over a line that is cut all the time, while client and
// daemon are killed in the middle: what had arrived is not sent again, the digest is
// right, and nothing is left over.
func TestTransfersOverABadLine(t *testing.T) {
	t.Parallel()
	size, every := transferSize(t)
	d, dir := startDaemon(t), t.TempDir()
	local, back := filepath.Join(dir, "big"), filepath.Join(dir, "back")
	digest := noise(t, local, size)
	l := d.badLine(every)
	idle := d.peak()

	journey := func(what string, args ...string) {
		t.Helper()
		l.reset()
		began := time.Now()
		held, release := l.holdAt(size * 3 / 10)
		first := d.over(l, args...)
		await(t, held, first.ended)
		if err := first.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-first.ended
		release()
		held, release = l.holdAt(size * 6 / 10)
		second := d.over(l, args...)
		await(t, held, second.ended)
		before := d.peak()
		d.kill()
		release()
		d.start()
		if err := <-second.ended; err != nil {
			t.Fatalf("%s: %v\n%s", what, err, &second.errs)
		}
		if !strings.Contains(second.out.String(), `"sha256":"`+digest+`"`) {
			t.Errorf("%s: %s", what, &second.out)
		}
		sent, cuts := l.count()
		t.Logf("%s: %d MiB in %.1f s, %d cuts, %.4f of the size went over; the daemon had %d MiB idle, %d and %d MiB at its peaks, the client %d MiB",
			what, size>>20, time.Since(began).Seconds(), cuts, float64(sent)/float64(size), idle, before, d.peak(), second.peak())
		most := size + size/20
		if size < 1<<30 {
			most += 4 << 20 // what is under way when something breaks weighs more in a small file
		}
		if sent > most {
			t.Errorf("%s: %d bytes went over for %d", what, sent, size)
		}
		if cuts < int(size/every)-1 {
			t.Errorf("%s: the line was cut only %d times", what, cuts)
		}
		if grown := max(before, d.peak()) - idle; !raceBuilt && grown > 64 { // whatever the size; most of it is garbage
			t.Errorf("%s: the daemon grew by %d MiB", what, grown)
		}
		if n := second.peak(); !raceBuilt && n > 96 {
			t.Errorf("%s: the client had %d MiB", what, n)
		}
	}
	journey("up", "files", "put", local)
	if left, err := os.ReadDir(filepath.Join(d.state, "blobs", "incoming")); err != nil || len(left) > 0 {
		t.Errorf("left of the upload: %v, %v", left, err)
	}
	l.reset()
	again := d.over(l, "files", "put", local)
	if err := <-again.ended; err != nil {
		t.Errorf("the same again: %v\n%s", err, &again.errs)
	}
	if sent, _ := l.count(); sent > 1<<16 {
		t.Errorf("the same file again took %d bytes", sent)
	}

	journey("down", "files", "get", "sha256:"+digest, back)
	got, err := os.Open(back)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, got); err != nil || hex.EncodeToString(sum.Sum(nil)) != digest {
		t.Errorf("another file came back: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left of the download: %v, %v", left, err)
	}
}
