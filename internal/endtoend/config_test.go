package endtoend

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (d *daemon) reload() (*macexecv1.ReloadConfigResponse, error) {
	return d.Host.ReloadConfig(d.context(), &macexecv1.ReloadConfigRequest{})
}

// field is one field of the configuration, as the daemon shows it.
func (d *daemon) field(pointer string) *macexecv1.ConfigField {
	d.t.Helper()
	resp, err := d.Host.GetConfig(d.context(), &macexecv1.GetConfigRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range resp.GetConfig().GetFields() {
		if f.GetPointer() == pointer {
			return f
		}
	}
	d.t.Fatalf("there is no field %s", pointer)
	return nil
}

func (d *daemon) projects() map[string]string {
	d.t.Helper()
	resp, err := d.Host.ListProjects(d.context(), &macexecv1.ListProjectsRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range resp.GetProjects() {
		all[p.GetName()] = p.GetRoot()
	}
	return all
}

// realFolder is a new folder by its path without links.
func realFolder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each field that a reload changes has its effect at once.
func TestReload(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	folder := realFolder(t)
	if before := d.field("/limits/upload_bytes"); !before.GetIsDefault() || before.GetDiffers() {
		t.Errorf("before: %v", before)
	}
	held := d.submitRun(call("held", "ledger_staged", newLedgers(t).args("held")))
	d.wait(held.GetId(), completed)

	d.configure(folder, "slots: {ledger: 3}", "limits: {upload_bytes: 10, max_attempts: 7}", "projects: {footage: "+folder+"}", "confinement: best_effort", "log: {format: json}")
	if now := d.field("/limits/upload_bytes"); string(now.GetValue()) != "68719476736" || !now.GetDiffers() || string(now.GetFileValue()) != "10" || now.GetNeedsRestart() {
		t.Errorf("before the reload: %v", now)
	}
	resp, err := d.reload()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/confinement", "/limits/max_attempts", "/limits/upload_bytes", "/projects", "/slots", "/tool_path"}
	if diff := cmp.Diff(want, resp.GetApplied()); diff != "" || !slices.Equal(resp.GetNeedsRestart(), []string{"/log/format"}) {
		t.Errorf("applied: %s, needs a restart: %v", diff, resp.GetNeedsRestart())
	}
	if now := d.field("/limits/upload_bytes"); string(now.GetValue()) != "10" || now.GetDiffers() || now.GetIsDefault() {
		t.Errorf("after: %v", now)
	}
	if now := d.field("/log/format"); string(now.GetValue()) != `"text"` || !now.GetIsDefault() || !now.GetDiffers() || !now.GetNeedsRestart() {
		t.Errorf("what needs a restart: %v", now)
	}
	large := filepath.Join(folder, "large")
	d.write(large, "more than ten bytes")
	_, err = d.Upload(d.context(), large)
	wantCode(t, err, "FILE_TOO_LARGE")
	if got := d.projects()["footage"]; got != folder {
		t.Errorf("the project is %q", got)
	}
	host, err := d.Host.GetHost(d.context(), &macexecv1.GetHostRequest{})
	if err != nil {
		t.Fatal(err)
	}
	slot := slices.IndexFunc(host.GetHost().GetSlots(), func(s *macexecv1.Slot) bool { return s.GetClass() == "ledger" })
	if slot < 0 || host.GetHost().GetSlots()[slot].GetSize() != 3 {
		t.Errorf("slots: %v", host.GetHost().GetSlots())
	}
	tool, err := d.Tools.GetTool(d.context(), &macexecv1.GetToolRequest{Name: "ledger_staged"})
	if err != nil || tool.GetTool().GetAvailable() {
		t.Errorf("the tool's program is still found: %v, %v", tool, err)
	}
	if again, err := d.reload(); err != nil || len(again.GetApplied()) > 0 {
		t.Errorf("a reload of the same: %v, %v", again, err)
	}
	d.configure(built.tools) // back, for the last look
	if _, err := d.reload(); err != nil {
		t.Error(err)
	}
}

// A file that cannot be used changes nothing, not even the fields that are well.
func TestABadReloadChangesNothing(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	one, other := realFolder(t), realFolder(t)
	d.configure(built.tools, "projects: {footage: "+one+"}")
	if _, err := d.reload(); err != nil {
		t.Fatal(err)
	}
	open := l.gate("user")
	d.write(filepath.Join(one, "a"), "a")
	user := d.submit(call("user", "ledger_staged", l.args("user", "gate").with("input", "a").with("project_id", "footage")))
	l.await("user", "begin", 1)
	for name, c := range map[string]struct {
		lines []string
		code  string
		says  string
	}{
		"not YAML":                 {[]string{"limits: {upload_bytes: 10", "}}"}, "REQUEST_INVALID", "what was in force stays"},
		"an unknown field":         {[]string{"limits: {upload_bytes: 10}", "colour: red"}, "REQUEST_INVALID", "colour"},
		"a project that is none":   {[]string{"limits: {upload_bytes: 10}", "projects: {footage: " + one + ", more: /nowhere/at/all}"}, "REQUEST_INVALID", "/nowhere/at/all"},
		"a project in the state":   {[]string{"limits: {upload_bytes: 10}", "projects: {footage: " + one + ", more: " + d.state + "}"}, "REQUEST_INVALID", "state folder"},
		"a project that is in use": {[]string{"limits: {upload_bytes: 10}", "projects: {footage: " + other + "}"}, "PROJECT_IN_USE", user.GetId()},
	} {
		d.configure(built.tools, c.lines...)
		_, err := d.reload()
		if e := wantCode(t, err, c.code); !strings.Contains(e.Error(), c.says) {
			t.Errorf("%s: %v", name, e)
		}
		if now := d.field("/limits/upload_bytes"); !now.GetIsDefault() {
			t.Errorf("%s: the limit is %s", name, now.GetValue())
		}
		if got := d.projects(); got["footage"] != one || got["more"] != "" {
			t.Errorf("%s: projects are %v", name, got)
		}
	}
	open()
	d.wait(user.GetId(), completed)
	d.configure(built.tools, "projects: {footage: "+other+"}")
	if _, err := d.reload(); err != nil || d.projects()["footage"] != other {
		t.Errorf("a project that nobody uses: %v, %v", d.projects(), err)
	}
}

// A project that the start had to leave out is not in force, whatever the file says; a
// reload adds it as soon as it can be one, and one that somebody removed too. Until then
// it holds up nothing else of the file.
func TestReloadAddsWhatTheStartLeftOut(t *testing.T) {
	t.Parallel()
	folder := realFolder(t)
	one, late := filepath.Join(folder, "one"), filepath.Join(folder, "late")
	if err := errors.Join(os.Mkdir(one, 0o700), os.Symlink(one, filepath.Join(folder, "link"))); err != nil {
		t.Fatal(err)
	}
	named := "projects: {late: " + late + ", one: " + filepath.Join(folder, "link") + "}"
	d := startDaemon(t, named)
	inForce := func(when string, names ...string) {
		t.Helper()
		f := d.field("/projects")
		var now map[string]string
		if err := json.Unmarshal(f.GetValue(), &now); len(f.GetValue()) > 0 && err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(now)); !slices.Equal(got, names) || f.GetDiffers() != (len(names) < 2) {
			t.Errorf("%s %q is in force, differs %t", when, f.GetValue(), f.GetDiffers())
		}
	}
	inForce("at the start", "one")
	d.configure(built.tools, named, "limits: {upload_bytes: 10}")
	if resp, err := d.reload(); err != nil || !slices.Equal(resp.GetApplied(), []string{"/limits/upload_bytes"}) {
		t.Errorf("without the folder: %v, %v", resp, err)
	}
	inForce("without the folder", "one")
	if err := os.Mkdir(late, 0o700); err != nil {
		t.Fatal(err)
	}
	if resp, err := d.reload(); err != nil || !slices.Equal(resp.GetApplied(), []string{"/projects"}) {
		t.Errorf("with the folder: %v, %v", resp, err)
	}
	inForce("with the folder", "late", "one")
	if got := d.projects(); got["late"] != late || got["one"] != one {
		t.Errorf("the projects are %v", got)
	}
	if _, err := d.Host.RemoveProject(d.context(), &macexecv1.RemoveProjectRequest{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	inForce("when one is removed", "late")
	if resp, err := d.reload(); err != nil || !slices.Equal(resp.GetApplied(), []string{"/projects"}) || d.projects()["one"] != one {
		t.Errorf("after a removal: %v, %v", resp, err)
	}
	if resp, err := d.reload(); err != nil || len(resp.GetApplied()) > 0 {
		t.Errorf("the same again: %v, %v", resp, err)
	}
}

// SIGHUP does the same, and the journal tells of it.
func TestHangUpReloads(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.configure(built.tools, "limits: {log_bytes: 4096}")
	if err := d.process.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	told := errors.New("told")
	err := d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{Follow: true}, func(e *macexecv1.Entry) error {
		if strings.Contains(e.GetMessage(), "the configuration was read again") {
			if e.GetPrincipal() != "" || !bytes.Contains(e.GetData(), []byte("/limits/log_bytes")) {
				t.Errorf("the entry: %v", e)
			}
			return told
		}
		return nil
	})
	if !errors.Is(err, told) {
		t.Fatal(err)
	}
	// The answer comes after the reload, which holds up whoever asks.
	if now := d.field("/limits/log_bytes"); string(now.GetValue()) != "4096" {
		t.Errorf("in force is %s", now.GetValue())
	}
	if err := os.Remove(filepath.Join(d.state, "config.yaml")); err != nil {
		t.Fatal(err)
	}
	if resp, err := d.reload(); err != nil || !slices.Contains(resp.GetApplied(), "/tool_path") {
		t.Errorf("without a file: %v, %v", resp, err)
	}
	d.configure(built.tools)
	if _, err := d.reload(); err != nil {
		t.Error(err)
	}
}
