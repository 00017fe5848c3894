package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// artifact returns a job's artifact by its name.
func artifact(t *testing.T, job *macexecv1.Job, name string) *macexecv1.Artifact {
	t.Helper()
	for _, a := range job.GetArtifacts() {
		if a.GetName() == name {
			return a
		}
	}
	t.Fatalf("job %s has no artifact %s: %v", job.GetId(), name, job.GetArtifacts())
	return nil
}

// A folder is one artifact; each file of a list is one, in the order of their names.
func TestFolderAndListArtifacts(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	job := d.wait(d.submit(call("k", "ledger_staged", l.args("a",
		"folder:files 1000 100", "folder:program bin/run", "folder:folder empty", "folder:file none 0",
		"list:file c.txt 3", "list:file a10.txt 1", "list:file a9.txt 2"))).GetId(), completed)
	folder := artifact(t, job, "folder")
	var digits int64
	for i := range 1000 {
		digits += int64(len(fmt.Sprint(i)))
	}
	if size := 1000*100 + digits + 10; !folder.GetFolder() || folder.GetFiles() != 1002 || folder.GetSize() != size || len(folder.GetSha256()) != 64 {
		t.Errorf("the folder is %v, want 1002 files and %d bytes", folder, size)
	}
	var names []string
	for _, a := range job.GetArtifacts() {
		names = append(names, a.GetName())
	}
	if got, want := strings.Join(names, " "), "folder list/a10.txt list/a9.txt list/c.txt"; got != want {
		t.Errorf("the artifacts are %s, want %s", got, want)
	}
	if got := job.GetUsage().GetBytesOut(); got != folder.GetSize()+6 {
		t.Errorf("%d bytes came out, want %d", got, folder.GetSize()+6)
	}
	var made strings.Builder
	if _, err := d.Fetch(d.context(), "job:"+job.GetId()+"/list/a9.txt", &made); err != nil || made.String() != "aa" {
		t.Errorf("a file of the list is %q: %v", made.String(), err)
	}
}

// What is not plain, or goes beyond the manifest's limits, is no output, and the
// message names it.
func TestHostileFolderIsNoOutput(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	t.Cleanup(d.wantNothingHidden)
	for name, test := range map[string]struct{ script, says string }{
		"link":    {"folder:link sub/out /etc/passwd", `"sub/out": not a plain folder: it is a symbolic link`},
		"pipe":    {"folder:pipe p", "named pipe"},
		"hard":    {"folder:hard b a", "hard link"},
		"control": {`folder:file a\nb 1`, "control character"},
		"utf":     {`folder:file a\xff 1`, "not UTF-8"},
		"twins":   {`folder:file A 1`, "letter case"},
		"nfc":     {`folder:file e\u0301 1`, "normalisation"},
		"own":     {"folder:file .macexec-x 1", "belong to macexec"},
		"files":   {"folder:files 1501 1", "more than 1500 files"},
		"bytes":   {"folder:file big 40000000", "more than 33554432 bytes"},
		"deep":    {"folder:file 1/2/3/4/5 1", "deeper than 4 levels"},
		"names":   {"list:file Name.txt 1", "does not match"},
		"nested":  {"list:file in/a.txt 1", "a list is of files only"},
		"empty":   {"list:file a.txt 0", "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := []string{"folder:file a 1", `folder:file \u00e9 1`, test.script}
			id := d.submit(call(name, "ledger_staged", l.args(name, script...).with("folder_output", name))).GetId()
			job := d.wait(id, failed)
			if job.GetEndReason() != macexecv1.EndReason_END_REASON_OUTPUT_INVALID || !strings.Contains(job.GetMessage(), test.says) || len(job.GetArtifacts()) > 0 {
				t.Errorf("it ended by %s with %q, want %q; artifacts %v", job.GetEndReason(), job.GetMessage(), test.says, job.GetArtifacts())
			}
		})
	}
}

// digestOf reads a folder as the page about manifests says.
func digestOf(t *testing.T, dir string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/manifests.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- tree digest -->\n```sh\n")
	script, _, _ := strings.Cut(rest, "```")
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil || len(out) < 64 {
		t.Fatalf("%s: %v", out, err)
	}
	return string(out[:64])
}

// watchFolder holds that a folder is not there, or has so many files (G6). With more
// than one number it is always there.
func watchFolder(t *testing.T, path string, allowed ...int) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for looks := 0; ; looks++ {
			n, err := countFiles(path)
			if !(errors.Is(err, os.ErrNotExist) && len(allowed) == 1) && (err != nil || !slices.Contains(allowed, n)) {
				t.Errorf("after %d looks %s has %d files, which nobody should see: %v", looks, filepath.Base(path), n, err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() {
		close(done)
		watcher.Wait()
	}
}

// countFiles counts through one handle of the folder, whatever has its name meanwhile.
func countFiles(path string) (n int, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	return n, err
}

// G6: a folder is published like a file: nothing or whole, over kills too; one that is
// there is replaced only by a person's yes, and goes to the trash as it is.
func TestG6_FolderIsNothingOrWhole(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	phases := []macexecv1.JobPhase{
		macexecv1.JobPhase_JOB_PHASE_RUNNING, macexecv1.JobPhase_JOB_PHASE_VERIFYING, macexecv1.JobPhase_JOB_PHASE_PUBLISHING,
	}
	for _, phase := range phases {
		for try := range 2 {
			name := fmt.Sprintf("%c_%s_%d", 'a'+try, strings.ToLower(phase.String()), try)
			path := filepath.Join(d.project, name)
			stop := watchFolder(t, path, 60)
			id := d.submit(call(name, "ledger_staged", l.args(name, "folder:files 59 10", "folder:program run", "folder:folder none").with("folder_output", name))).GetId()
			d.awaitState(id, func(j *macexecv1.Job) bool { return j.GetPhase() >= phase || client.Settled(j.GetState()) })
			d.kill()
			d.start()
			job := d.wait(id, completed)
			stop()
			if a := artifact(t, job, "folder"); a.GetPath() != name || a.GetKept() != "" || a.GetSha256() != digestOf(t, path) {
				t.Errorf("the artifact is %v", a)
			}
			if fi, err := os.Stat(path); err != nil || fi.Sys().(*syscall.Stat_t).Ino != job.GetPlan().GetSteps()[0].GetInode() {
				t.Errorf("the folder is not the one of the plan: %v", err)
			}
			l.wantStarts(name, 1)
		}
	}
	taken := d.submitFolder(l, "taken", phases[0].String(), false)
	wantCode(t, taken.err, "ARGUMENTS_NOT_POSSIBLE")
	name := "a_job_phase_running_0"
	path := filepath.Join(d.project, name)
	before := digestOf(t, path)
	replaced := d.submitFolder(l, "replace", name, true)
	if replaced.err != nil || replaced.job.GetState() != awaiting {
		t.Fatalf("replacing is %s, want it to wait for a person: %v", replaced.job.GetState(), replaced.err)
	}
	stop := watchFolder(t, path, 60, 2)
	d.approve(replaced.job)
	job := d.wait(replaced.job.GetId(), completed)
	stop()
	if trash := job.GetPlan().GetSteps()[0].GetTrash(); digestOf(t, filepath.Join(d.project, trash)) != before || digestOf(t, path) != artifact(t, job, "folder").GetSha256() {
		t.Error("the old folder is not in the trash, or the new one not in its place")
	}
	d.put("plain.txt", "a file")
	wantCode(t, d.submitFolder(l, "file", "plain.txt", true).err, "ARGUMENTS_NOT_POSSIBLE")
	d.wantNothingHidden()
}

type submitted struct {
	job *macexecv1.Job
	err error
}

func (d *daemon) submitFolder(l *ledgers, key, output string, replace bool) submitted {
	d.t.Helper()
	if !replace {
		if err := os.Mkdir(filepath.Join(d.project, output), 0o700); err != nil {
			d.t.Fatal(err)
		}
	}
	req := call(key, "ledger_staged", l.args(key, "folder:file a 1", "folder:file b 2").with("folder_output", output))
	req.Options = &macexecv1.Options{Replace: replace}
	job, err := d.Submit(d.context(), req)
	return submitted{job, err}
}

// What one job made is read by the next by its reference, a folder and a file of a list
// too, with the digest that is recorded at the artifact.
func TestChainOfJobs(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	first := d.wait(d.submit(call("first", "ledger_staged", l.args("a", "folder:file x/1.txt 3", "folder:file 2.txt 2", "list:file b.txt 4"))).GetId(), completed)
	ref := "job:" + first.GetId() + "/"
	second := d.wait(d.submit(call("second", "ledger_staged", l.args("b", "tree").with("tree", ref+"folder").with("output", "list.txt"))).GetId(), completed)
	wantFile(t, filepath.Join(d.project, "list.txt"), "2.txt aa\nx/1.txt aaa\n")
	in := second.GetInputs()[0]
	if made := artifact(t, first, "folder"); in.GetSha256() != made.GetSha256() || in.GetSize() != 5 || in.GetMediaType() != "inode/directory" {
		t.Errorf("the input is %v, the artifact %v", in, made)
	}
	third := d.wait(d.submit(call("third", "ledger_staged", l.args("c", "copy").with("input", "job:"+second.GetId()+"/file").with("output", "copy.txt"))).GetId(), completed)
	wantFile(t, filepath.Join(d.project, "copy.txt"), "2.txt aa\nx/1.txt aaa\n")
	if third.GetInputs()[0].GetSha256() != artifact(t, second, "file").GetSha256() {
		t.Errorf("the input is %v", third.GetInputs())
	}
	d.wait(d.submit(call("list", "ledger_staged", l.args("d", "copy").with("input", ref+"list/b.txt").with("output", "b.txt"))).GetId(), completed)
	wantFile(t, filepath.Join(d.project, "b.txt"), "aaaa")

	// A folder of the project, and what does not fit.
	if err := os.MkdirAll(filepath.Join(d.project, "dir", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.put("dir/in/a.txt", "hello")
	d.wait(d.submit(call("project", "ledger_staged", l.args("e", "tree").with("tree", "dir").with("output", "dir.txt"))).GetId(), completed)
	wantFile(t, filepath.Join(d.project, "dir.txt"), "in/a.txt hello\n")

	open := l.gate("slow")
	slow := d.submit(call("slow", "ledger_staged", l.args("slow", "write:10", "gate", "exit:1"))).GetId()
	l.await("slow", "begin", 1)
	d.put("copy.txt", "changed")
	for name, test := range map[string]struct{ argument, value, code, keyword, says string }{
		"a file as a folder":  {"tree", ref + "list/b.txt", "ARGUMENTS_NOT_POSSIBLE", "kind", "is a file, not a folder"},
		"a folder as a file":  {"input", ref + "folder", "ARGUMENTS_NOT_POSSIBLE", "kind", "is a folder"},
		"a project's folder":  {"input", "dir", "ARGUMENTS_NOT_POSSIBLE", "regular_file", "not a regular file"},
		"no artifact":         {"input", ref + "list/c.txt", "ARGUMENTS_NOT_POSSIBLE", "exists", "no artifact"},
		"not completed":       {"input", "job:" + slow + "/file", "ARGUMENTS_NOT_POSSIBLE", "job_completed", "is running, not completed"},
		"changed since":       {"input", "job:" + third.GetId() + "/file", "ARGUMENTS_NOT_POSSIBLE", "exists", "no longer what job"},
		"of another host":     {"input", "job:" + first.GetId()[:len(first.GetId())-8] + "aaaaaaaa/file", "JOB_ON_OTHER_HOST", "other_host", "is on host aaaaaaaa"},
		"of nobody":           {"input", "job:nothing/file", "ARGUMENTS_NOT_POSSIBLE", "exists", "no job"},
		"nothing but a job":   {"input", "job:" + first.GetId(), "ARGUMENTS_NOT_POSSIBLE", "reference", "is not job:<id>/<artifact>"},
		"a folder with links": {"tree", "linked", "ARGUMENTS_NOT_POSSIBLE", "folder_content", "symbolic link"},
	} {
		if name == "a folder with links" {
			if err := errors.Join(os.Mkdir(filepath.Join(d.project, "linked"), 0o700), os.Symlink("/etc/passwd", filepath.Join(d.project, "linked", "x"))); err != nil {
				t.Fatal(err)
			}
		}
		_, err := d.Submit(d.context(), call("no "+name, "ledger_staged", l.args("none", "copy").with(test.argument, test.value)))
		refused := wantCode(t, err, test.code)
		if f := refused.Findings(); len(f) != 1 || f[0].GetKeyword() != test.keyword || !strings.Contains(f[0].GetMessage(), test.says) || f[0].GetPointer() != "/"+test.argument {
			t.Errorf("%s: %v", name, findings(err))
		}
		if test.code == "JOB_ON_OTHER_HOST" && refused.Detail.GetMetadata()["host"] != "aaaaaaaa" {
			t.Errorf("the host is not named: %v", refused.Detail.GetMetadata())
		}
	}
	open()
	d.wait(slow, failed)
	_, err := d.Submit(d.context(), call("of a failed one", "ledger_staged", l.args("none", "copy").with("input", "job:"+slow+"/file")))
	if wantCode(t, err, "ARGUMENTS_NOT_POSSIBLE"); !strings.Contains(strings.Join(findings(err), ""), "is failed, not completed") {
		t.Errorf("of a failed job: %v", findings(err))
	}
	l.wantStarts("none", 0)
}

// A folder comes down as a tar and is unpacked only when its digest is right. A download
// that was cut off, here by the daemon's death, goes on where it was.
func TestDownloadAFolder(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	job := d.wait(d.submit(call("k", "ledger_staged", l.args("a", "folder:files 150 20000", "folder:program bin/run", "folder:folder none",
		"list:file one.txt 1", "list:file two.txt 2").with("folder_output", "made"))).GetId(), completed)
	made := artifact(t, job, "folder")
	ref := "job:" + job.GetId() + "/folder"
	info, err := d.Stat(d.context(), ref)
	if err != nil || !info.GetFolder() || info.GetSha256() != made.GetSha256() || info.GetSize() != made.GetSize() || info.GetTransferSize() <= made.GetSize() || info.GetName() != "folder" {
		t.Errorf("the folder is described as %v: %v", info, err)
	}
	to := filepath.Join(t.TempDir(), "folder")
	killed := false
	var again sync.WaitGroup
	got, err := d.DownloadFolder(d.context(), ref, to, client.OnProgress(func(done, total int64) {
		if done > total/2 && !killed {
			killed = true
			d.kill()
			again.Go(d.start)
		}
	}))
	again.Wait()
	if err != nil || !killed || got.GetSha256() != made.GetSha256() || digestOf(t, to) != made.GetSha256() {
		t.Errorf("downloaded %v, killed: %t: %v", got, killed, err)
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if _, err := d.DownloadFolder(d.context(), ref, to); !errors.Is(err, os.ErrExist) {
		t.Errorf("a folder that is there: %v", err)
	}
	all := t.TempDir()
	if code, out := d.macexec("jobs", "artifacts", job.GetId(), "--download", all); code != 0 || digestOf(t, filepath.Join(all, "folder")) != made.GetSha256() {
		t.Errorf("exit code %d: %s", code, out)
	}
	wantFile(t, filepath.Join(all, "list", "two.txt"), "aa")

	d.put("made/none/more.txt", "more") // it is no longer what the job made
	_, err = d.DownloadFolder(d.context(), ref, to+"2")
	wantCode(t, err, "ARTIFACT_CHANGED")
	if err := os.RemoveAll(filepath.Join(d.project, "made")); err != nil {
		t.Fatal(err)
	}
	_, err = d.Stat(d.context(), ref)
	wantCode(t, err, "ARTIFACT_GONE")
}

// A chain of shipped tools and one more: each reads by reference what the one before it
// made, from an export to a folder of pictures to a list of what is in it.
func TestChainOfShippedTools(t *testing.T) {
	t.Parallel()
	needs(t, "ffmpeg", "ffprobe")
	d, l := startDaemon(t), newLedgers(t)
	out, err := exec.CommandContext(d.context(), "ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=25:duration=2",
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", filepath.Join(d.project, "clip.mp4")).CombinedOutput()
	if err != nil {
		t.Fatalf("ffmpeg: %v\n%s", err, out)
	}
	export := d.wait(d.submit(call("export", "export_video",
		`{"project_id":"default","input":"clip.mp4","format":"mp4","resolution":"source","include_audio":false}`)).GetId(), completed)
	frames := d.wait(d.submit(call("frames", "extract_frames", map[string]any{
		"project_id": "default", "input": "job:" + export.GetId() + "/video", "output": "frames", "every_seconds": 0.5, "max_frames": 100,
	})).GetId(), completed)
	made := artifact(t, frames, "frames")
	if !made.GetFolder() || made.GetFiles() != 4 || made.GetPath() != "frames" || made.GetSha256() != digestOf(t, filepath.Join(d.project, "frames")) {
		t.Errorf("the pictures are %v", made)
	}
	if in := frames.GetInputs()[0]; in.GetSha256() != artifact(t, export, "video").GetSha256() {
		t.Errorf("it read %v", in)
	}
	var result struct {
		Frames, Width int
		SHA256        string
	}
	if err := json.Unmarshal(frames.GetResult(), &result); err != nil || result.Frames != 4 || result.Width != 320 || result.SHA256 != made.GetSha256() {
		t.Errorf("the result is %s: %v", frames.GetResult(), err)
	}
	d.wait(d.submit(call("list", "ledger_staged", l.args("a", "tree").with("tree", "job:"+frames.GetId()+"/frames").with("output", "list.txt"))).GetId(), completed)
	list, err := os.ReadFile(filepath.Join(d.project, "list.txt"))
	if err != nil || strings.Count(string(list), "frame-0000") != 4 || !strings.HasPrefix(string(list), "frame-00001.png is no text\n") {
		t.Errorf("the list has %d bytes: %v", len(list), err)
	}
}
