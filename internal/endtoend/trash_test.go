package endtoend

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// discard has a tool remove a file, and returns where it lies in the trash, by now for as
// long as is said.
func (d *daemon) discard(name, content string, ago time.Duration) (path string) {
	d.t.Helper()
	d.put(name, content)
	job := d.submit(call("remove "+name, "delete_asset", fmt.Sprintf(`{"project_id":"default","asset":%q}`, name)))
	d.approve(job)
	job = d.wait(job.GetId(), completed)
	path = filepath.Join(d.project, job.GetPlan().GetSteps()[0].GetTrash())
	d.age(path, ago)
	return path
}

// age gives the note of something in the trash another time.
func (d *daemon) age(path string, ago time.Duration) {
	d.t.Helper()
	note := filepath.Dir(path) + ".json"
	text, err := os.ReadFile(note)
	if err != nil {
		d.t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), `"at": "`)
	_, after, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		d.t.Fatalf("the note is %s", text)
	}
	d.write(note, before+`"at": "`+time.Now().Add(-ago).UTC().Format(time.RFC3339Nano)+`"`+after)
}

// awaitPass returns when the daemon has made the pass of its start, so that it is the
// test's own that removes something.
func (d *daemon) awaitPass() {
	d.t.Helper()
	for ctx := d.context(); ; {
		got, err := d.Host.GetHost(ctx, &macexecv1.GetHostRequest{})
		if err != nil {
			d.t.Fatal(err)
		}
		if got.GetHost().GetRetention().GetLastPass() != nil {
			return
		}
		select {
		case <-ctx.Done():
			d.t.Fatal("there was no pass at the start")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pruneOnly makes a pass in which no job goes.
func (d *daemon) pruneOnly(dry bool) *macexecv1.Pruned {
	d.t.Helper()
	resp, err := d.Store.PruneStore(d.context(), &macexecv1.PruneStoreRequest{DryRun: dry})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.GetPruned()
}

func (d *daemon) wantTrash(want ...string) {
	d.t.Helper()
	var got []string
	root := filepath.Join(d.project, ".macexec-trash")
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path != root {
			got = append(got, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		d.t.Errorf("the trash (-want +got):\n%s", diff)
	}
}

const season = 91 * 24 * time.Hour

// What was removed goes after its time, also out of a trash that somebody has filled with
// all that could lead a daemon astray; of that nothing goes, and nothing outside.
func TestTrashIsCollected(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	d.awaitPass()
	young := d.discard("young.txt", "young", season/2)
	ofOld := d.discard("old.txt", "old", season)
	d.put("out.txt", "replaced")
	replace := call("replace", "ledger_staged", l.args("replace", "write:10").with("output", "out.txt"))
	replace.Options = &macexecv1.Options{Replace: true}
	job := d.submit(replace)
	d.approve(job)
	job = d.wait(job.GetId(), completed)
	replaced := filepath.Join(d.project, job.GetPlan().GetSteps()[0].GetTrash())
	d.age(replaced, season)

	root, outside := filepath.Join(d.project, ".macexec-trash"), t.TempDir()
	d.write(filepath.Join(outside, "letter.txt"), "mine")
	host, err := d.Host.GetHost(d.context(), &macexecv1.GetHostRequest{})
	if err != nil {
		t.Fatal(err)
	}
	forged := func(n int) string { return fmt.Sprintf("01jqxw6q2w8y4n0000000000zz-%s-%d", host.GetHost().GetId(), n) }
	note := func(n int, path string) {
		job, _, _ := strings.Cut(forged(n), fmt.Sprint("-", n))
		d.write(filepath.Join(root, forged(n)+".json"), fmt.Sprintf(`{"path": %q, "job": %q, "verb": "remove", "at": "2020-01-02T03:04:05Z"}`, path, job))
	}
	for _, dir := range []string{forged(1), forged(2), forged(3), forged(5)} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hostile := map[string]string{ // links, by their names
		forged(0):                 outside,
		forged(1) + "/letter.txt": filepath.Join(outside, "letter.txt"),
		forged(2) + "/letters":    outside,
		forged(4) + ".json":       filepath.Join(outside, "letter.txt"),
	}
	for name, to := range hostile {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	note(0, "letter.txt")
	note(1, "letter.txt")
	note(2, "letters")
	note(3, "../../letter.txt")
	note(5, "gone.txt")
	d.write(filepath.Join(root, forged(5), "mine.txt"), "mine")
	d.write(filepath.Join(root, "mine.txt"), "mine")
	stays := append([]string{"mine.txt", forged(5) + "/mine.txt"}, slices.Collect(maps.Keys(hostile))...)
	for n := range 6 {
		if n != 4 {
			stays = append(stays, forged(n)+".json")
		}
		if n != 0 && n != 4 {
			stays = append(stays, forged(n))
		}
	}
	there := func(path string) []string {
		place := filepath.Base(filepath.Dir(path))
		return []string{place, place + ".json", place + "/" + filepath.Base(path)}
	}

	stays = append(stays, there(young)...)
	d.wantTrash(slices.Concat(stays, there(ofOld), there(replaced))...)
	if code, out := d.macexec("store", "prune", "--dry-run"); code != 0 || !strings.Contains(out, "would remove 2 with 11 B from the trash of projects") {
		t.Errorf("store prune --dry-run: %d, %s", code, out)
	}
	for _, dry := range []bool{true, false} {
		if got := d.pruneOnly(dry); got.GetTrash() != 2 || got.GetTrashBytes() != int64(len("old"+"replaced")) || got.GetJobs() != 0 {
			t.Errorf("dry %t: %v", dry, got)
		}
	}
	d.wantTrash(stays...)
	wantFile(t, filepath.Join(outside, "letter.txt"), "mine")
	wantFile(t, young, "young")
	wantFile(t, filepath.Join(d.project, "out.txt"), strings.Repeat("r", 10))
	if got, err := d.Host.GetHost(d.context(), &macexecv1.GetHostRequest{}); err != nil || got.GetHost().GetRetention().GetFailing() != "" {
		t.Errorf("retention fails: %v, %v", got.GetHost().GetRetention(), err)
	}
	if code, out := d.macexec("store", "df"); code != 0 || !strings.Contains(out, "trash of default:") {
		t.Errorf("store df: %d, %s", code, out)
	}
}

// The daemon is killed while it empties the trash, at each point in turn. What is left has
// its note, and the next pass removes all.
func TestKilledWhileTheTrashIsEmptied(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"trash.begun", "trash.removed", "trash.left"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			o := newOrders(t)
			d := startDaemonOf(t, needFaulty(t), []string{"MACEXEC_FAULTS=" + o.dir})
			d.awaitPass()
			path := d.discard("old.txt", "old", season)
			o.arm(point, "hold")
			pruned := make(chan error, 1)
			go func() {
				_, err := d.Store.PruneStore(d.context(), &macexecv1.PruneStoreRequest{})
				pruned <- err
			}()
			for met := false; !met; _, met = o.metBy(point) {
				select {
				case <-o.met:
				case err := <-pruned:
					t.Fatalf("nobody came to the point: %v", err)
				}
			}
			d.kill()
			t.Logf("the request that was cut off says %v", <-pruned)
			place := filepath.Base(filepath.Dir(path))
			d.wantTrash(map[string][]string{
				"trash.begun":   {place, place + ".json", place + "/old.txt"},
				"trash.removed": {place, place + ".json"},
				"trash.left":    {place + ".json"},
			}[point]...)
			d.start()
			d.pruneOnly(false)
			d.wantTrash()
			d.wantNothingHidden()
		})
	}
}

// A plan that is being carried out finds in the trash what it has moved there, however old
// the note seems, and also after its daemon was killed.
func TestG6_TrashOfAnOpenJobStays(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"publish.removed", "publish.noted"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			o := newOrders(t)
			d := startDaemonOf(t, needFaulty(t), []string{"MACEXEC_FAULTS=" + o.dir})
			d.awaitPass()
			d.put("asset.txt", "precious")
			o.arm(point, "hold")
			job := d.submit(call("k", "delete_asset", `{"project_id":"default","asset":"asset.txt"}`))
			d.approve(job)
			for met := false; !met; _, met = o.metBy(point) {
				<-o.met
			}
			path := filepath.Join(d.project, ".macexec-trash", job.GetId()+"-0", "asset.txt")
			d.age(path, season)
			if got := d.pruneOnly(false); got.GetTrash() != 0 {
				t.Errorf("removed %v", got)
			}
			o.goOn()
			d.wait(job.GetId(), completed)
			wantFile(t, path, "precious")
			if got := d.pruneOnly(false); got.GetTrash() != 1 {
				t.Errorf("once it has ended: removed %v", got)
			}
			d.wantTrash()
		})
	}
}

// The keeper of an earlier daemon stays while an attempt of it lives, and the text of a
// manifest while a job that was accepted with it has a record; then they go.
func TestG7_OldKeepersAndManifestsAreCollected(t *testing.T) {
	t.Parallel()
	d, l := startDaemonOf(t, needFaulty(t), nil), newLedgers(t)
	accepted := d.submit(call("external", "ledger_external", l.args("external")))
	d.approve(accepted)
	d.wait(accepted.GetId(), completed)
	open := l.gate("long")
	long := d.submit(call("long", "ledger_none", l.args("long", "gate"))).GetId()
	l.await("long", "begin", 1)
	d.kill()

	(&walker{daemon: d}).upgrade()
	text, err := os.ReadFile(d.manifest(external))
	if err != nil {
		t.Fatal(err)
	}
	d.write(d.manifest(external), string(text)+"# the same in another edition\n")
	d.start()
	d.awaitPass()
	keepers := func() int {
		t.Helper()
		list, err := os.ReadDir(filepath.Join(d.state, "keepers"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if got := d.pruneOnly(false); got.GetKeepers() != 0 || got.GetManifests() != 0 || keepers() != 2 {
		t.Errorf("removed %v, and %d keepers are left", got, keepers())
	}
	open()
	d.wait(long, completed)
	for _, dry := range []bool{true, false} {
		if got := d.pruneOnly(dry); got.GetKeepers() != 1 || got.GetManifests() != 0 || got.GetUnusedBytes() < 1<<20 {
			t.Errorf("dry %t: %v", dry, got)
		}
	}
	if keepers() != 1 {
		t.Errorf("%d keepers are left", keepers())
	}
	for _, dry := range []bool{true, false} {
		resp, err := d.Store.PruneStore(d.context(), &macexecv1.PruneStoreRequest{OlderThan: durationpb.New(time.Nanosecond), DryRun: dry})
		if got := resp.GetPruned(); err != nil || got.GetJobs() != 2 || got.GetManifests() != 1 || got.GetKeepers() != 0 || got.GetUnusedBytes() != int64(len(text)) {
			t.Errorf("dry %t: %v, %v", dry, got, err)
		}
	}
	d.wait(d.submit(call("after", "ledger_none", l.args("after"))).GetId(), completed)
}
