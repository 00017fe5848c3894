package endtoend

import (
	"fmt"
	"strings"
	"testing"

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
			script := []string{"folder:file a 1", `folder:file \u00e9 1`, test.script}
			id := d.submit(call(name, "ledger_staged", l.args(name, script...).with("folder_output", name))).GetId()
			job := d.wait(id, failed)
			if job.GetEndReason() != macexecv1.EndReason_END_REASON_OUTPUT_INVALID || !strings.Contains(job.GetMessage(), test.says) || len(job.GetArtifacts()) > 0 {
				t.Errorf("it ended by %s with %q, want %q; artifacts %v", job.GetEndReason(), job.GetMessage(), test.says, job.GetArtifacts())
			}
		})
	}
	d.wantNothingHidden()
}
