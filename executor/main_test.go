package executor_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/executor"
	"github.com/macexec/macexec/executor/keeper"
)

// The test binary plays three parts: the tests, the keeper with its launcher, and
// the tools, which are short scripts in Go.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeper.Main(os.Args[2:]))
		case "slow":
			os.Exit(slow(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
		case "tool":
			os.Exit(tool(os.Args[2], os.Args[3:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// slow plays the keeper, or the launcher, after a time has passed and a file is there
// ("": none).
func slow(part, after, file string, args []string) int {
	if args[0] == part {
		nanos, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			panic(err)
		}
		for file != "" {
			if _, err := os.Stat(file); err == nil {
				break
			}
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Until(time.Unix(0, nanos+1)))
	}
	return keeper.Main(args)
}

// tool is a scripted tool.
func tool(verb string, args []string) int {
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	block := func() {
		fmt.Println("ready", os.Getpid())
		time.Sleep(time.Hour) //nolint:forbidigo // until it is killed
	}
	child := func(detached bool, argv ...string) {
		c := exec.Command(self(), append([]string{"tool"}, argv...)...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if detached {
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	switch verb {
	case "exit":
		return number(0)
	case "die": // by a signal
		signal.Reset()
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number(0)))
		select {}
	case "say":
		fmt.Fprint(os.Stdout, args[0])
		fmt.Fprint(os.Stderr, args[1])
	case "environment":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "descriptors":
		// Taken before anything is opened here but the folder itself.
		dir, err := os.Open("/dev/fd")
		if err != nil {
			panic(err)
		}
		names, _ := dir.Readdirnames(-1)
		for _, n := range names {
			if n == strconv.Itoa(int(dir.Fd())) {
				continue
			}
			if target, err := os.Readlink("/dev/fd/" + n); err == nil && !strings.Contains(target, "anon_inode") {
				fmt.Println(n, target)
			}
		}
	case "stdin":
		n, err := io.Copy(io.Discard, os.Stdin)
		fmt.Println(n, err)
	case "block":
		block()
	case "stubborn": // ignores SIGTERM, as does its child
		signal.Ignore(syscall.SIGTERM)
		if number(0) > 0 {
			child(false, "stubborn", strconv.Itoa(number(0)-1))
		}
		block()
	case "polite": // ends well when asked to
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready", os.Getpid())
		<-c
		return 5
	case "leave": // a child that holds the pipes
		child(args[0] == "detached", args[1:]...)
		// The child must be there before this one ends.
		return 0
	case "leave-ready": // the same, once the child has said that it is ready
		c := exec.Command(self(), append([]string{"tool"}, args[1:]...)...)
		pipe, _ := c.StdoutPipe()
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: args[0] == "detached"}
		if err := c.Start(); err != nil {
			panic(err)
		}
		line, _ := bufio.NewReader(pipe).ReadString('\n')
		fmt.Print(line)
	case "with": // a child, and goes on itself
		child(args[0] == "detached", args[1:]...)
		block()
	case "bytes":
		r := rand.New(rand.NewChaCha8([32]byte{}))
		h := sha256.New()
		out := io.MultiWriter(os.Stdout, h)
		_, _ = out.Write([]byte("\xff\xfe cut \xc3"))
		_, _ = out.Write([]byte("\xa9 nul \x00 \x1b[31m red"))
		data := make([]byte, number(0))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		_, _ = out.Write(data)
		fmt.Fprint(os.Stderr, hex.EncodeToString(h.Sum(nil)))
	case "flood":
		line := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
		var wg sync.WaitGroup
		for _, f := range []*os.File{os.Stdout, os.Stderr} {
			wg.Go(func() {
				for range number(0) {
					_, _ = f.Write(line)
				}
				_, _ = f.WriteString("the end")
			})
		}
		wg.Wait()
	case "flood-block":
		line := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
		for range number(0) {
			_, _ = os.Stderr.Write(line)
		}
		block()
	case "attack": // write and replace each given path; say what happened
		for _, path := range args {
			_, err := os.ReadDir(path)
			report("list", path, err)
			_, err = os.ReadFile(filepath.Join(path, "started"))
			report("read", path, err)
			report("write", path, os.WriteFile(filepath.Join(path, "exit"), []byte("{}"), 0o600))
			report("make", path, os.WriteFile(filepath.Join(path, "stop"), []byte("{}"), 0o600))
			report("rename", path, os.Rename(path, path+"2"))
			report("replace", path, os.Rename("mine", filepath.Join(path, "exit")))
			report("remove", path, os.Remove(filepath.Join(path, "started")))
		}
	case "read":
		for _, path := range args {
			data, err := os.ReadFile(path)
			fmt.Printf("%s %q %v\n", path, data, err)
		}
	case "write":
		for _, path := range args {
			report("write", path, os.WriteFile(path, []byte("written"), 0o666))
		}
	case "dial":
		c, err := net.Dial("tcp", args[0])
		if err == nil {
			c.Close()
		}
		report("dial", args[0], err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			l.Close()
		}
		report("listen", "-", err)
		u, err := net.Dial("udp", args[0])
		if err == nil {
			u.Close()
		}
		report("udp", args[0], err)
	case "kill":
		report("kill", args[0], syscall.Kill(number(0), syscall.SIGKILL))
	case "calls":
		for _, text := range args {
			call(strings.Fields(text))
		}
	case "chmod": // by descriptor
		f, err := os.OpenFile(args[0], os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			panic(err)
		}
		report("chmod", args[0], f.Chmod(0o640))
	case "memory":
		data := make([]byte, number(0))
		for i := 0; i < len(data); i += 4096 {
			data[i] = 1
		}
		fmt.Println(len(data))
	default:
		panic("no such tool: " + verb)
	}
	return 0
}

// call makes a system call: its name, its number, and its arguments, which are
// numbers, @ with a path, or & for a buffer of zeros.
func call(text []string) {
	var a [6]uintptr
	var keep [6][]byte
	for i, t := range text[2:] {
		switch t[0] {
		case '@':
			keep[i] = append([]byte(t[1:]), 0)
		case '&':
			keep[i] = make([]byte, 256)
		default:
			n, err := strconv.ParseInt(t, 10, 64)
			if err != nil {
				panic(err)
			}
			a[i] = uintptr(n)
			continue
		}
		a[i] = uintptr(unsafe.Pointer(&keep[i][0]))
	}
	nr, err := strconv.Atoi(text[1])
	if err != nil {
		panic(err)
	}
	_, _, errno := syscall.Syscall6(uintptr(nr), a[0], a[1], a[2], a[3], a[4], a[5])
	runtime.KeepAlive(&keep)
	if errno == 0 {
		report(text[0], "-", nil)
		return
	}
	report(text[0], "-", errno)
}

func report(verb, what string, err error) {
	fmt.Println(verb, what, errors.Is(err, os.ErrPermission), err)
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// keeperArgv plays the keeper by this binary. With the race detector a program
// rests for a second before it ends, unless its environment says otherwise.
func keeperArgv() []string {
	if raceDetector {
		return []string{"/usr/bin/env", noRest, self(), "keeper"}
	}
	return []string{self(), "keeper"}
}

const (
	boot   = "boot-1"
	noRest = "GORACE=atexit_sleep_ms=0"
)

// bench is an executor over a fresh root.
type bench struct {
	t    testing.TB
	x    *executor.Executor
	root string
}

func setup(t testing.TB) *bench {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "mx") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	root, err = filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	b := &bench{t: t, root: root}
	b.x = b.fresh(boot)
	return b
}

// fresh is another executor over the same root, as after a restart.
func (b *bench) fresh(session string) *executor.Executor {
	b.t.Helper()
	x, err := executor.New(executor.Options{Root: b.root, Keeper: keeperArgv(), BootSession: session})
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

func command(verb string, args ...string) executor.Command {
	return executor.Command{
		Argv: append([]string{self(), "tool", verb}, args...),
		Env:  []string{"LC_ALL=C.UTF-8", noRest}, Grace: 10 * time.Second,
	}
}

func (b *bench) start(job string, cmd executor.Command) *executor.Running {
	b.t.Helper()
	a, err := b.x.Prepare(job, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := a.Start(cmd)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) wait(r *executor.Running) executor.Outcome {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	o, err := r.Wait(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

// exited waits and demands an exit record.
func (b *bench) exited(r *executor.Running) keeper.Exit {
	b.t.Helper()
	o := b.wait(r)
	if o.Kind != executor.Exited {
		complaints, _ := os.ReadFile(r.Dir().Errors())
		b.t.Fatalf("outcome %+v, want an exit record; the keeper says: %s", o, complaints)
	}
	return *o.Exit
}

func (b *bench) run(job string, cmd executor.Command) keeper.Exit {
	b.t.Helper()
	return b.exited(b.start(job, cmd))
}

func (b *bench) started(r *executor.Running) keeper.Started {
	b.t.Helper()
	s, ok, err := r.Started(b.t.Context())
	if err != nil || !ok {
		b.t.Fatalf("started: %v, %v", ok, err)
	}
	return s
}

// output is everything a stream gave, without the gaps.
func (b *bench) output(job string, s executor.Stream) []byte {
	b.t.Helper()
	var data []byte
	err := b.x.ReadLog(b.t.Context(), job, 1, executor.LogOptions{Stream: s}, func(c executor.LogChunk) error {
		data = append(data, c.Data...)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}

var errSeen = errors.New("seen")

// ready waits for n lines "ready PID" in the log and gives the processes.
func (b *bench) ready(job string, n int) []executor.Proc {
	b.t.Helper()
	var data []byte
	var procs []executor.Proc
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	err := b.x.ReadLog(ctx, job, 1, executor.LogOptions{Stream: executor.Stdout, Follow: true}, func(c executor.LogChunk) error {
		data = append(data, c.Data...)
		procs = nil
		for line := range bytes.Lines(data) {
			var pid int
			if k, _ := fmt.Sscanf(string(line), "ready %d\n", &pid); k == 1 && bytes.HasSuffix(line, []byte("\n")) {
				p, err := keeper.Identify(pid)
				if err != nil {
					return err
				}
				procs = append(procs, p)
			}
		}
		if len(procs) >= n {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		b.t.Fatalf("the tool did not get ready: %v; output %q", err, data)
	}
	return procs
}

// gone demands that none of the processes lives.
func (b *bench) gone(procs ...executor.Proc) {
	b.t.Helper()
	if alive := slices.DeleteFunc(slices.Clone(procs), func(p executor.Proc) bool { return !p.Alive() }); len(alive) > 0 {
		b.t.Errorf("still alive: %v", alive)
	}
}
