package endtoend

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A trace is what strace wrote down of a daemon, its keepers and its tools: every
// system call that changes files, in the order in which they ended.

// traced are the calls that change files, and the one with which a tool begins. A system
// need not have all of them.
const traced = "open openat creat write writev pwrite64 pwritev pwritev2 truncate ftruncate fallocate copy_file_range sendfile splice " +
	"rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mkdir mkdirat rmdir chmod fchmod fchmodat fchmodat2 " +
	"fsync fdatasync sync syncfs sync_file_range ioctl execve"

// tracer is the command in front of a daemon that writes its trace to a file. The
// daemon stays the child of the test.
func tracer(t *testing.T, file string) []string {
	t.Helper()
	needs(t, "strace")
	command := []string{"strace", "-D", "-f", "-q", "-y", "-xx", "-ttt", "-s", "16777216", "-e", "trace=?" + strings.ReplaceAll(traced, " ", ",?"), "-e", "signal=none", "-e", "status=all", "-o", file}
	if out, err := exec.Command(command[0], append(command[1:], "true")...).CombinedOutput(); err != nil {
		if !bytes.Contains(out, []byte("ermitted")) {
			t.Fatalf("strace: %v\n%s", err, out)
		}
		t.Skipf("SKIPPED, NOT TESTED: processes may not be traced here: %s", out)
	}
	return command
}

// call is one system call that did what it was asked, or the start or end of one.
type sysCall struct {
	at     time.Time
	pid    int
	name   string
	args   []string
	result string
	// An fsync holds for what was written before it began.
	phase phase
}

type phase byte

const (
	whole phase = iota
	begun
	ended
	gone // the process has ended; the result is its code
)

var (
	traceLine   = regexp.MustCompile(`^(\d+) +(\d+)\.(\d{6}) (.*)$`)
	processGone = regexp.MustCompile(`^\+\+\+ (?:exited with (\d+)|killed by (\w+).*) \+\+\+$`)
	wholeCall   = regexp.MustCompile(`^(\w+)\((.*)\) += (\S+)(.*)$`)
)

// readTrace reads a trace. What failed is left out.
func readTrace(t *testing.T, file string) []sysCall {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var calls []sysCall
	unfinished := map[int]string{}
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if line == "" && err != nil {
			return calls
		}
		m := traceLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			t.Fatalf("a line of the trace cannot be read: %.300q", line)
		}
		pid, _ := strconv.Atoi(m[1])
		seconds, _ := strconv.ParseInt(m[2], 10, 64)
		micros, _ := strconv.ParseInt(m[3], 10, 64)
		c, text := sysCall{at: time.UnixMicro(seconds*1e6 + micros), pid: pid}, m[4]
		if g := processGone.FindStringSubmatch(text); g != nil {
			c.phase, c.result = gone, g[1]
			calls = append(calls, c)
			continue
		}
		if head, ok := strings.CutSuffix(text, " <unfinished ...>"); ok {
			unfinished[pid] = head
			if isSync(head) {
				c.name, c.phase, c.args = "fsync", begun, splitArgs(head[strings.IndexByte(head, '(')+1:])
				calls = append(calls, c)
			}
			continue
		}
		if rest, ok := strings.CutPrefix(text, "<... "); ok {
			_, rest, _ = strings.Cut(rest, " resumed>")
			text = unfinished[pid] + rest
			delete(unfinished, pid)
			c.phase = ended
		}
		w := wholeCall.FindStringSubmatch(text)
		if w == nil {
			t.Fatalf("a call of the trace cannot be read: %.300q", text)
		}
		c.name, c.args, c.result = w[1], splitArgs(w[2]), w[3]+w[4]
		if isSync(text) {
			c.name = "fsync"
		} else {
			c.phase = whole
		}
		if !strings.HasPrefix(c.result, "-") && !strings.HasPrefix(c.result, "?") {
			calls = append(calls, c)
		}
	}
}

func isSync(text string) bool {
	return strings.HasPrefix(text, "fsync(") || strings.HasPrefix(text, "fdatasync(")
}

// splitArgs splits at the commas that are in no string, no path and no list.
func splitArgs(text string) (args []string) {
	depth, quoted, start := 0, false, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted // a quote inside is written in hexadecimal
		case quoted:
		case c == '[' || c == '{' || c == '(':
			depth++
		case c == ']' || c == '}' || c == ')':
			depth--
		case c == ',' && depth == 0:
			args, start = append(args, strings.TrimSpace(text[start:i])), i+1
		}
	}
	return append(args, strings.TrimSpace(text[start:]))
}

// text is an argument that is a string.
func (c sysCall) text(i int) string {
	quoted := strings.Trim(c.args[i], `"`)
	return unhex(quoted)
}

func unhex(text string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(text, `\x`, ""))
	if err != nil {
		return text
	}
	return string(b)
}

// opened is the path of an argument, or of the result, that is a descriptor; "" if it
// has none any more.
func opened(arg string) string {
	_, rest, ok := strings.Cut(arg, "<")
	name, rest, closed := strings.Cut(rest, ">")
	if !ok || !closed || strings.HasPrefix(rest, "(deleted)") {
		return ""
	}
	return unhex(name)
}

// path is what a name means beside the descriptor before it, or beside the working
// folder of a process, of which calls without such a descriptor here know nothing.
func (c sysCall) path(dir, name int) string {
	p := c.text(name)
	if path.IsAbs(p) || dir < 0 {
		return path.Clean(p)
	}
	return path.Join(opened(c.args[dir]), p)
}

func (c sysCall) number(i int) int64 {
	n, err := strconv.ParseInt(c.args[i], 0, 64)
	if err != nil {
		return -1
	}
	return n
}

func (c sysCall) count() int64 {
	first, _, _ := strings.Cut(c.result, " ")
	n, err := strconv.ParseInt(first, 0, 64)
	if err != nil {
		return -1
	}
	return n
}

// paths are all that a call names.
func (c sysCall) paths() string {
	var list []string
	for i, a := range c.args {
		if strings.HasPrefix(a, `"`) && !strings.Contains(c.name, "write") {
			list = append(list, c.text(i))
		} else {
			list = append(list, opened(a))
		}
	}
	return strings.Join(list, " ")
}

func (c sysCall) String() string {
	var args []string
	for _, a := range c.args {
		if p := opened(a); p != "" {
			a = "<" + p + ">"
		} else if strings.HasPrefix(a, `"`) {
			a = fmt.Sprintf("%.60q", unhex(strings.Trim(a, `"`)))
		}
		args = append(args, a)
	}
	return fmt.Sprintf("%d %s(%s)", c.pid, c.name, strings.Join(args, ", "))
}
