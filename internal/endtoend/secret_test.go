package endtoend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// G11: a secret reaches the tool's environment and nothing else.
func TestG11_SecretIsNowhereElse(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-0f-the-t00l-\"quoted\"-€"
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	req := call("k", "ledger_none", l.args("a", "secret", "gate").with("token", secret))
	id := d.submit(req).GetId()
	sum := sha256.Sum256([]byte(secret))
	if got := l.await("a", "secret", 1); got != hex.EncodeToString(sum[:]) {
		t.Errorf("the tool was given something else than the secret")
	}
	was := d.started(id, 1)
	if lines, err := filepath.Glob("/proc/[0-9]*/cmdline"); err == nil && len(lines) > 0 {
		found := map[string]bool{}
		for _, line := range lines {
			found[line] = true
			if content, err := os.ReadFile(line); err == nil && bytes.Contains(content, []byte(secret)) {
				t.Errorf("the secret is in a command line: %q", content)
			}
		}
		t.Logf("looked at %d command lines, among them tool %d and keeper %d", len(found), was.Pid, was.KeeperPid)
	}
	d.nowhere(secret, "")
	open()
	d.wait(id, completed)
	if again := d.submit(req); again.GetId() != id || strings.Contains(again.String(), secret) {
		t.Errorf("the same call again is job %s, want %s without the secret", again.GetId(), id)
	}
	_, err := d.Submit(d.context(), call("k", "ledger_none", l.args("a", "secret", "gate").with("token", "another secret")))
	if e := wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT"); strings.Contains(e.Detail.String(), secret) {
		t.Errorf("the conflict tells the secret: %v", e.Detail)
	}
	_, err = d.Submit(d.context(), call("other", "ledger_none", l.args("a").with("token", secret+strings.Repeat("x", 300))))
	if e := wantCode(t, err, "ARGUMENTS_SCHEMA_VIOLATION"); strings.Contains(e.Detail.String(), secret) {
		t.Errorf("the refusal tells the secret: %v", e.Detail)
	}
	d.kill()
	d.nowhere(secret, "")
	d.start()
}

// G11: a tool that prints its secret does not bring it to anybody's eyes. The raw
// log of the attempt, which only this user can read, has what the tool printed.
func TestG11_PrintedSecretIsMasked(t *testing.T) {
	t.Parallel()
	const secret = "an0ther-secret-0f-the-t00l"
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	req := call("k", "ledger_none", l.args("a", "tell", "secret", "gate", "exit:3").with("token", secret))
	id := d.submit(req).GetId()
	l.await("a", "secret", 1)
	d.kill() // the next daemon has to know the secret too, to mask it
	d.start()
	open()
	job := d.wait(id, failed)
	if len(job.GetLogTail()) == 0 || !strings.Contains(job.GetCause(), "was refused") || strings.Contains(job.String(), secret) {
		t.Errorf("the job says %v, and its likely cause is %q", job.GetLogTail(), job.GetCause())
	}
	if text, _ := d.log(id, false); !bytes.Contains(text, []byte("was refused")) || bytes.Contains(text, []byte(secret)) {
		t.Errorf("the log is %q", text)
	}
	if _, output := d.macexec("jobs", "logs", id); strings.Contains(output, secret) {
		t.Errorf("the command line tells %q", output)
	}
	if _, output := d.macexec("journal", "export"); strings.Contains(output, secret) || !strings.Contains(output, id) {
		t.Error("the exported journal has the secret, or not the job")
	}
	d.end(syscall.SIGTERM)
	d.nowhere(secret, d.attempt(id, 1).Log())
	d.start()
}

// nowhere holds that no file of the state folder but one has a text, plain or as
// JSON would write it.
func (d *daemon) nowhere(text, but string) {
	d.t.Helper()
	forms := [][]byte{[]byte(text), []byte(strings.ReplaceAll(text, `"`, `\"`))}
	files := 0
	err := filepath.WalkDir(d.state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || path == but {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, form := range forms {
			if bytes.Contains(content, form) {
				d.t.Errorf("%s has the secret", path)
			}
		}
		return nil
	})
	if err != nil || files < 5 {
		d.t.Errorf("looked at %d files: %v", files, err)
	}
}
