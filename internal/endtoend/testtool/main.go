// Command testtool is what the end-to-end tests let the daemon run. It writes down
// in a ledger, which lies outside of everything macexec keeps, that it was started;
// so the tests count processes without asking macexec. Then it does what its
// arguments say.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	err := run(os.Args[1:])
	if code, ok := errors.AsType[exitError](err); ok {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testtool:", err)
		os.Exit(1)
	}
}

// exitError ends the script.
type exitError int

func (c exitError) Error() string { return "exit with " + strconv.Itoa(int(c)) }

// run takes the folder of the ledger, its name, and the words of the script.
func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: testtool FOLDER NAME WORD…")
	}
	t := &tool{folder: args[0], name: args[1]}
	if err := t.note("begin " + strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	for _, word := range args[2:] {
		if err := t.do(word); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return t.note("end " + strconv.Itoa(os.Getpid()))
}

type tool struct{ folder, name string }

func (t *tool) path(suffix string) string { return filepath.Join(t.folder, t.name+suffix) }

// note appends one line to the ledger, and wakes the test that reads it.
func (t *tool) note(line string) error {
	ledger, err := os.OpenFile(t.path(".ledger"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = ledger.WriteString(line + "\n")
	if err := errors.Join(err, ledger.Close()); err != nil {
		return err
	}
	events, err := os.OpenFile(filepath.Join(t.folder, "events"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil //nolint:nilerr // nobody listens any more
	}
	_, _ = events.WriteString("!") // a full pipe wakes the reader as well
	return events.Close()
}

func (t *tool) do(word string) error {
	verb, rest, _ := strings.Cut(word, ":")
	switch verb {
	case "gate": // until the test lets one more through
		gate, err := os.OpenFile(t.path(".gate"), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer gate.Close()
		_, err = io.ReadFull(gate, make([]byte, 1))
		return err
	case "pause": // so many milliseconds, as if there were something to do
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(n) * time.Millisecond)
		return nil
	case "when": // it is, by the host's clock
		return t.note("when " + strconv.FormatInt(time.Now().UnixNano(), 10))
	case "print":
		_, err := fmt.Fprintln(os.Stdout, rest)
		return err
	case "complain":
		_, err := fmt.Fprintln(os.Stderr, rest)
		return err
	case "lines": // so many numbered ones
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		for i := range n {
			if _, err := fmt.Fprintf(os.Stdout, "line %06d\n", i); err != nil {
				return err
			}
		}
		return nil
	case "raw", "rawerr": // these bytes, written in hexadecimal
		b, err := hex.DecodeString(rest)
		if err != nil {
			return err
		}
		out := map[string]*os.File{"raw": os.Stdout, "rawerr": os.Stderr}[verb]
		_, err = out.Write(b)
		return err
	case "noise": // so many bytes that are no text, always the same ones
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return err
		}
		_, err = io.CopyN(os.Stdout, rand.NewChaCha8([32]byte{60}), n)
		return err
	case "json": // an object with a text of so many bytes
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(os.Stdout, `{"text":%q}`, strings.Repeat("r", n))
		return err
	case "flood": // so many bytes, in numbered lines of 16, half of them as complaints
		return flood(rest)
	case "write": // so many bytes more into the output
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		out, err := os.OpenFile(os.Getenv("OUT"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = out.WriteString(strings.Repeat(t.name[:1], n))
		return errors.Join(err, out.Close())
	case "fill": // the disk, with the output, and without a word about its end
		out, err := os.OpenFile(os.Getenv("OUT"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		for err == nil {
			_, err = out.WriteString(strings.Repeat(t.name[:1], 1<<16))
		}
		return out.Close()
	case "folder", "list": // something in the folder, or in the list
		return t.put(os.Getenv(strings.ToUpper(verb)), rest)
	case "copy": // what came in, as the output
		content, err := os.ReadFile(os.Getenv("IN"))
		if err != nil {
			return err
		}
		return os.WriteFile(os.Getenv("OUT"), content, 0o600)
	case "tree": // what the folder that came in holds, into the output
		return t.listTree()
	case "exit":
		code, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		return exitError(code)
	case "secret": // what it was given, by digest
		sum := sha256.Sum256([]byte(os.Getenv("SECRET")))
		return t.note("secret " + hex.EncodeToString(sum[:]))
	case "tell": // what it was given, aloud
		_, err := fmt.Fprintln(os.Stderr, "error: the token", os.Getenv("SECRET"), "was refused")
		return err
	case "deaf": // to every polite request
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	case "child": // that stays at the gate, as deaf as its parent
		return t.startChild()
	case "others": // says which earlier starts still live
		return t.noteOthers()
	case "forge": // tries to change what its keeper writes
		return t.forge()
	default:
		return errors.New("no such word")
	}
	return nil
}

// flood fills standard output and standard error in turn. The number of a line is its
// place in its stream.
func flood(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	block := make([]byte, 0, 64<<10)
	for line := 0; line < n/32; {
		block = block[:0]
		for ; len(block) < cap(block) && line < n/32; line++ {
			block = fmt.Appendf(block, "%015d\n", line)
		}
		for _, stream := range []*os.File{os.Stdout, os.Stderr} {
			if _, err := stream.Write(block); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tool) startChild() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := os.StartProcess(self, []string{self, t.folder, t.name + "_child", "deaf", "gate"}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	return t.note("child " + strconv.Itoa(child.Pid))
}

func (t *tool) noteOthers() error {
	content, err := os.ReadFile(t.path(".ledger"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "begin ")
		pid, err := strconv.Atoi(text)
		if !ok || err != nil || pid == os.Getpid() || !lives(pid) {
			continue
		}
		if err := t.note("alive " + text); err != nil {
			return err
		}
	}
	return t.note("looked")
}

// lives takes a zombie for dead where the system tells: nobody may be there to
// reap what a killed keeper leaves.
func lives(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// forge notes every change of the keeper's records that it was able to make.
func (t *tool) forge() error {
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	records := filepath.Join(filepath.Dir(work), "keeper")
	for _, name := range []string{"exit", "started", "lock", "log", "reserve", "fenced", "stop"} {
		path := filepath.Join(records, name)
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = f.WriteString(`{"code":0}`)
			_ = f.Close()
			_ = t.note("forged open " + name)
		}
		if err := os.Rename(path, path+".away"); err == nil {
			_ = t.note("forged rename " + name)
		}
		if err := os.Remove(path); err == nil {
			_ = t.note("forged remove " + name)
		}
	}
	if err := os.Rename(records, records+".away"); err == nil {
		_ = t.note("forged rename of the folder")
	}
	return t.note("tried")
}
