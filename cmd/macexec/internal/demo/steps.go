package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func (d *show) start(ctx context.Context) error {
	d.title("A daemon starts in an empty folder")
	d.sayf("   $ macexec serve")
	if err := d.startDaemon(ctx); err != nil {
		return err
	}
	var project struct {
		Name string `json:"name"`
		Root string `json:"root"`
	}
	if err := d.quietly(ctx, 0, &project, "projects", "list"); err != nil {
		return err
	}
	d.files = project.Root
	if err := d.complete(ctx); err != nil {
		return err
	}
	d.provedf("it takes calls, from this user only, and calls may touch only the files in the project %q", project.Name)
	return claimf(project.Name == "default", "the first project is called default, not %q", project.Name)
}

// complete asks the daemon whether the demo's tools have the programs they need.
func (d *show) complete(ctx context.Context) error {
	var missing []string
	for _, name := range []string{"inspect_image", "inspect_audio", "inspect_video", "convert_image", "export_video", "delete_asset"} {
		var tool struct {
			Available bool     `json:"available"`
			Missing   []string `json:"missing"`
		}
		if err := d.quietly(ctx, 0, &tool, "tools", "show", name); err != nil {
			return err
		}
		if !tool.Available {
			missing = append(missing, tool.Missing...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &MissingError{slices.Compact(missing)}
}

func (d *show) inspect(ctx context.Context) error {
	d.title("Tools read real files: a photo, a recording, a clip")
	for _, one := range []struct {
		tool, file string
		fields     []string
	}{
		{"inspect_image", d.Photo, []string{"width", "height", "format"}},
		{"inspect_audio", d.Speech, []string{"duration_seconds", "sample_rate", "codec"}},
		{"inspect_video", d.Clip, []string{"duration_seconds", "width", "height"}},
	} {
		if _, err := d.place(one.file, filepath.Join(d.dir, one.file)); err != nil {
			return err
		}
		var done job
		if err := d.macexec(ctx, 0, &done, "call", one.tool, "-a", "input=@"+one.file); err != nil {
			return err
		}
		var facts []string
		for _, field := range one.fields {
			value, ok := done.Result[field]
			if err := claimf(ok && value != nil, "the result of %s says %s", one.tool, field); err != nil {
				return err
			}
			facts = append(facts, fmt.Sprintf("%s %v", strings.ReplaceAll(field, "_", " "), value))
		}
		if err := claimf(done.State == "completed" && done.SideEffect == "none", "%s is completed without a side effect", one.tool); err != nil {
			return err
		}
		d.provedf("%s", strings.Join(facts, ", "))
	}
	return nil
}

func (d *show) convert(ctx context.Context) error {
	d.title("A tool makes a file: nothing shows in the project until the whole, checked output is moved there")
	var done job
	if err := d.macexec(ctx, 0, &done, "call", "convert_image", "-a", "input=@"+d.Photo, "-a", "format=png", "-a", "output=photo.png"); err != nil {
		return err
	}
	return d.published(done, "photo.png")
}

// published checks that a completed job put its file into the project.
func (d *show) published(done job, name string) error {
	info, err := os.Stat(filepath.Join(d.files, name))
	if err := claimf(err == nil, "%s is in the project: %v", name, err); err != nil {
		return err
	}
	if err := claimf(done.State == "completed" && len(done.Artifacts) == 1 && done.Artifacts[0].Size == info.Size() && done.Artifacts[0].Path == name,
		"the job names %s with its %d bytes", name, info.Size()); err != nil {
		return err
	}
	d.provedf("%s, %d bytes, SHA-256 %.12s…", name, info.Size(), done.Artifacts[0].SHA256)
	return nil
}

const exportKey = "demo-export-1"

func (d *show) exportArgs(key, input, output string, more ...string) []string {
	return append([]string{
		"call", "export_video", "--key", key, "-a", "project_id=default", "-a", "input=@" + input,
		"-a", "output=" + output, "-a", "format=mp4", "-a", "resolution=source", "-a", "include_audio=true",
	}, more...)
}

// longer makes a longer video of the clip, without encoding anything.
func (d *show) longer(ctx context.Context, name string, times int) error {
	out, err := exec.CommandContext(ctx, "ffmpeg", "-v", "error", "-stream_loop", fmt.Sprint(times-1),
		"-i", filepath.Join(d.dir, d.Clip), "-c", "copy", filepath.Join(d.dir, name)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ffmpeg could not make %s: %w: %s", name, err, out)
	}
	return nil
}

func (d *show) export(ctx context.Context) error {
	d.title("An export tells how far it is")
	if err := d.longer(ctx, "trip.mp4", 2); err != nil {
		return err
	}
	var accepted job
	if err := d.macexec(ctx, 0, &accepted, d.exportArgs(exportKey, "trip.mp4", "trip-export.mp4", "--detach")...); err != nil {
		return err
	}
	d.sayf("   $ macexec jobs watch %s", accepted.ID)
	reports, before := 0, -1.0
	var backwards error
	err := d.watch(ctx, accepted.ID, func(e event) bool {
		if e.Progress != nil && e.Progress.Percent != nil {
			reports++
			backwards = errors.Join(backwards, claimf(*e.Progress.Percent >= before, "progress never goes back (%.1f after %.1f)", *e.Progress.Percent, before))
			before = *e.Progress.Percent
			if d.Progress != nil {
				d.Progress(fmt.Sprintf("   %3.0f%% %s", before, e.Progress.Rate))
			}
		}
		return false
	})
	if d.Progress != nil {
		d.Progress("")
	}
	if err := errors.Join(err, backwards); err != nil {
		return err
	}
	if err := claimf(reports > 0, "progress was reported while it ran"); err != nil {
		return err
	}
	if err := d.quietly(ctx, 0, &d.exported, "jobs", "wait", accepted.ID); err != nil {
		return err
	}
	d.provedf("%d reports of progress on the way", reports)
	return d.published(d.exported, "trip-export.mp4")
}

func (d *show) repeat(ctx context.Context) error {
	d.title("The same key again starts nothing, and gives the same job")
	before, err := d.jobs(ctx)
	if err != nil {
		return err
	}
	var again job
	if err := d.macexec(ctx, 0, &again, d.exportArgs(exportKey, "trip.mp4", "trip-export.mp4")...); err != nil {
		return err
	}
	after, err := d.jobs(ctx)
	if err != nil {
		return err
	}
	if err := claimf(again.Replayed && again.ID == d.exported.ID && len(again.Attempts) == 1, "job %s is returned as a replay", d.exported.ID); err != nil {
		return err
	}
	d.provedf("job %s, replayed; still %d jobs", again.ID, len(after))
	return claimf(len(before) == len(after), "there are as many jobs as before (%d, now %d)", len(before), len(after))
}

// jobs lists every job's id.
func (d *show) jobs(ctx context.Context) ([]string, error) {
	out, err := d.command(ctx, "jobs", "list", "--all", "-q").Output()
	return strings.Fields(string(out)), err
}

func (d *show) conflict(ctx context.Context) error {
	d.title("The same key for another call is a conflict: nothing runs")
	var no refusal
	if err := d.macexec(ctx, 9, &no, d.exportArgs(exportKey, "trip.mp4", "other.mp4")...); err != nil {
		return err
	}
	if err := claimf(no.Code == "IDEMPOTENCY_KEY_CONFLICT" && no.JobID == d.exported.ID, "the conflict names job %s", d.exported.ID); err != nil {
		return err
	}
	d.provedf("%s, and it names the key's job %s", no.Code, no.JobID)
	return nil
}

func (d *show) wrongCall(ctx context.Context) error {
	d.title("A wrong call gets three separate answers: is it JSON, does it fit the schema, can it be done")
	const args = `{"format":"mp4","resolution":"4K","include_audio":"yes"}`
	path := filepath.Join(d.dir, "wrong.json")
	if err := os.WriteFile(path, []byte(args), 0o600); err != nil {
		return err
	}
	d.sayf("   %s", args)
	var no refusal
	if err := d.macexec(ctx, 3, &no, "call", "export_video", "--key", "demo-wrong", "--args", "wrong.json"); err != nil {
		return err
	}
	if err := claimf(no.Verdicts.Syntax && !no.Verdicts.Schema && !no.Verdicts.Business, "the verdicts are: syntax true, schema false, business false"); err != nil {
		return err
	}
	for _, f := range no.Findings {
		where := f.Pointer
		if where == "" {
			where = "the arguments"
		}
		d.sayf("   %s: %s", where, f.Message)
		if f.Hint != "" {
			d.sayf("       hint: %s", f.Hint)
		}
	}
	named := func(pointer string) bool {
		for _, f := range no.Findings {
			if f.Pointer == pointer {
				return true
			}
		}
		return false
	}
	if err := claimf(named("/include_audio"), "a finding points at /include_audio"); err != nil {
		return err
	}
	d.provedf("syntax valid, schema invalid, business not reached; the key is still free")
	return d.free(ctx, "demo-wrong")
}

// free checks that nothing ever started under a key.
func (d *show) free(ctx context.Context, key string) error {
	var no refusal
	if err := d.quietly(ctx, 10, &no, "jobs", "show", "--key", key); err != nil {
		return err
	}
	return claimf(no.Code == "JOB_NOT_FOUND", "the key %s is free", key)
}

func (d *show) approval(ctx context.Context) error {
	d.title("Deleting waits for a person")
	asset := filepath.Join(d.files, "photo.png")
	var asked job
	if err := d.macexec(ctx, 0, &asked, "call", "delete_asset", "--key", "demo-delete", "-a", "project_id=default", "-a", "asset=photo.png", "--detach"); err != nil {
		return err
	}
	_, err := os.Stat(asset)
	if err := claimf(asked.State == "awaiting_approval" && len(asked.Attempts) == 0 && err == nil, "the job waits, and the file is there"); err != nil {
		return err
	}
	d.provedf("the job is %s; the file is still there", strings.ReplaceAll(asked.State, "_", " "))
	var approved, done job
	if err := d.macexec(ctx, 0, &approved, "jobs", "approve", asked.ID, "--reason", "only a demo"); err != nil {
		return err
	}
	if err := d.macexec(ctx, 0, &done, "jobs", "wait", asked.ID); err != nil {
		return err
	}
	_, err = os.Stat(asset)
	if err := claimf(done.State == "completed" && errors.Is(err, fs.ErrNotExist), "the job is completed and the file is gone"); err != nil {
		return err
	}
	trashed, err := d.inTrash("photo.png")
	if err != nil {
		return err
	}
	if err := claimf(trashed != "", "the file is in the project's trash"); err != nil {
		return err
	}
	d.provedf("after approval it ran; the file is in the project's trash")
	return nil
}

// inTrash finds a file that was moved out of the way, by the end of its name.
func (d *show) inTrash(name string) (found string, err error) {
	err = filepath.WalkDir(d.files, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.Contains(path, name) {
			found = path
		}
		return err
	})
	return found, err
}

func (d *show) crash(ctx context.Context) error {
	d.title("The daemon is killed in the middle of an export, and started again: the export completes, once")
	if err := d.longer(ctx, "long.mp4", 4); err != nil {
		return err
	}
	var accepted job
	if err := d.macexec(ctx, 0, &accepted, d.exportArgs("demo-export-2", "long.mp4", "long-export.mp4", "--detach")...); err != nil {
		return err
	}
	at := -1.0
	if err := d.watch(ctx, accepted.ID, func(e event) bool {
		if e.Progress != nil && e.Progress.Percent != nil && *e.Progress.Percent > 0 && *e.Progress.Percent < 90 {
			at = *e.Progress.Percent
		}
		return at >= 0
	}); err != nil {
		return err
	}
	if err := claimf(at >= 0, "the export was seen in the middle"); err != nil {
		return err
	}
	d.sayf("   $ kill -9 %d   (the export is at %.1f%%)", d.daemon.cmd.Process.Pid, at)
	_ = d.signal(syscall.SIGKILL)
	d.sayf("   $ macexec serve")
	if err := d.startDaemon(ctx); err != nil {
		return err
	}
	var done job
	if err := d.macexec(ctx, 0, &done, "jobs", "wait", accepted.ID); err != nil {
		return err
	}
	if err := claimf(len(done.Attempts) == 1, "it was started once (%d attempts)", len(done.Attempts)); err != nil {
		return err
	}
	d.provedf("one attempt: the export went on without the daemon and was taken up again")
	return d.published(done, "long-export.mp4")
}

func (d *show) journal(ctx context.Context) error {
	d.title("Everything is in a journal whose entries are chained, so that none can be changed unseen")
	var report struct {
		OK   bool `json:"ok"`
		Good int  `json:"good"`
	}
	if err := d.macexec(ctx, 0, &report, "journal", "verify"); err != nil {
		return err
	}
	out, err := d.command(ctx, "journal", "export").Output()
	if err != nil {
		return err
	}
	entries := json.NewDecoder(strings.NewReader(string(out)))
	count := 0
	for entries.More() {
		var entry struct {
			Seq int `json:"seq"`
		}
		if err := entries.Decode(&entry); err != nil {
			return err
		}
		count++
		if err := claimf(entry.Seq == count, "entry %d follows entry %d", entry.Seq, count-1); err != nil {
			return err
		}
	}
	if err := claimf(report.OK && report.Good == count && count > 0, "all %d entries are good (%d)", count, report.Good); err != nil {
		return err
	}
	d.provedf("%d entries, and every one is as it was written", count)
	return nil
}
