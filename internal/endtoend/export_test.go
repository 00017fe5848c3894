package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// G7: the daemon is killed in the middle of a real export, which goes on and is
// taken up again.
func TestG7_ExportOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	needs(t, "ffmpeg", "ffprobe")
	d := startDaemon(t)
	const seconds = 20
	source := filepath.Join(d.project, "source.mp4")
	out, err := exec.CommandContext(d.context(), "ffmpeg", "-nostdin", "-v", "error",
		"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=960x540:rate=25:duration=%d", seconds),
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", source).CombinedOutput()
	if err != nil {
		t.Fatalf("ffmpeg: %v\n%s", err, out)
	}
	job := d.submit(call("export", "export_video",
		`{"project_id":"default","input":"source.mp4","output":"result.mp4","format":"mp4","resolution":"source","include_audio":false}`))
	if !d.awaitProgress(job.GetId()) {
		t.Fatal("the export ended without telling of its progress")
	}
	was := d.started(job.GetId(), 1)
	d.kill()
	if !was.Tool().Alive() || !was.Keeper().Alive() {
		t.Fatalf("the tool lives: %v, its keeper: %v", was.Tool().Alive(), was.Keeper().Alive())
	}
	if _, err := os.Stat(filepath.Join(d.project, "result.mp4")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is something at the destination: %v", err)
	}
	d.start()
	d.awaitProgress(job.GetId()) // or the end of it
	job = d.wait(job.GetId(), completed)
	if len(job.GetAttempts()) != 1 || job.GetAttempts()[0].GetStarted().GetPid() != int64(was.Pid) {
		t.Errorf("attempts %v, want the one of process %d", job.GetAttempts(), was.Pid)
	}
	out, err = exec.CommandContext(d.context(), "ffprobe", "-v", "error", "-count_packets", "-show_entries", "stream=codec_name,nb_read_packets",
		"-of", "csv=p=0", filepath.Join(d.project, "result.mp4")).CombinedOutput()
	if want := fmt.Sprintf("h264,%d", seconds*25); err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("the result is %q, %v; want %q", out, err, want)
	}
}

// awaitProgress waits until a running job says how far it is, and reports false if
// it ends before.
func (d *daemon) awaitProgress(id string) bool {
	d.t.Helper()
	progress, ended := errors.New("progress"), errors.New("ended")
	err := d.Watch(d.context(), &macexecv1.WatchJobsRequest{JobId: id, Progress: true}, func(e *macexecv1.Event) error {
		switch {
		case e.GetProgress().GetPercent() > 0:
			return progress
		case client.Settled(e.GetJob().GetState()):
			return ended
		default:
			return nil
		}
	})
	if !errors.Is(err, progress) && !errors.Is(err, ended) {
		d.t.Fatalf("wait for progress: %v", err)
	}
	return errors.Is(err, progress)
}

// log reads the whole log of a job.
func (d *daemon) log(id string, follow bool) (text []byte, gap int64) {
	d.t.Helper()
	text, gap, err := d.readLog(d.context(), id, follow)
	if err != nil {
		d.t.Fatalf("read the log: %v", err)
	}
	return text, gap
}

func (d *daemon) readLog(ctx context.Context, id string, follow bool) (text []byte, gap int64, err error) {
	err = d.ReadLogs(ctx, &macexecv1.ReadJobLogsRequest{JobId: id, Follow: follow}, func(c *macexecv1.LogChunk) error {
		text = append(text, c.GetData()...)
		gap += c.GetGapBytes()
		return nil
	})
	return text, gap, err
}

// numbered is what a tool of the tests prints for the word "lines".
func numbered(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "line %06d\n", i)
	}
	return b.Bytes()
}

// G7, G12: the log has everything that the tool said before the daemon died, while
// there was none, and afterwards, and a reader that followed it all the time missed
// nothing and got nothing twice.
func TestG12_LogIsWholeOverARestart(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	id := d.submit(call("k", "ledger_none", l.args("a", "lines:2000", "gate", "lines:3000", "gate", "lines:1000"))).GetId()
	l.await("a", "begin", 1)
	type reading struct {
		text []byte
		gap  int64
		err  error
	}
	followed := make(chan reading, 1)
	ctx := d.context()
	go func() {
		text, gap, err := d.readLog(ctx, id, true)
		followed <- reading{text, gap, err}
	}()
	d.kill()
	open()
	d.start()
	open()
	d.wait(id, completed)
	want := slices.Concat(numbered(2000), numbered(3000), numbered(1000))
	text, gap := d.log(id, false)
	if !bytes.Equal(text, want) || gap != 0 {
		t.Errorf("the log has %d bytes and a gap of %d, want %d and none", len(text), gap, len(want))
	}
	if got := <-followed; got.err != nil || !bytes.Equal(got.text, want) || got.gap != 0 {
		t.Errorf("the follower has %d bytes and a gap of %d (%v), want %d and none", len(got.text), got.gap, got.err, len(want))
	}
}

// G12: what is not kept of a log is counted.
func TestG12_LogTellsOfItsGap(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "limits: {log_bytes: 65536}"), newLedgers(t)
	const lines = 50000
	id := d.submit(call("k", "ledger_none", l.args("a", fmt.Sprintf("lines:%d", lines)))).GetId()
	d.wait(id, completed)
	text, gap := d.log(id, false)
	whole := numbered(lines)
	if gap == 0 || int64(len(text))+gap != int64(len(whole)) {
		t.Errorf("%d bytes and a gap of %d were told, of %d", len(text), gap, len(whole))
	}
	if !bytes.HasPrefix(text, numbered(100)) || !bytes.HasSuffix(text, whole[len(whole)-1000:]) {
		t.Errorf("the log of %d bytes does not have the beginning and the end", len(text))
	}
}

// G12: a watcher that goes on from its cursor sees each entry once.
func TestG12_WatchGoesOnOverRestarts(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	const jobs = 12
	last := fmt.Sprintf("job%d", jobs-1)
	var seen []uint64
	ended := errors.New("ended")
	watched := make(chan error, 1)
	ctx := d.context()
	go func() {
		watched <- d.Watch(ctx, &macexecv1.WatchJobsRequest{}, func(e *macexecv1.Event) error {
			if e.GetEntry() != nil {
				seen = append(seen, e.GetEntry().GetSeq())
			}
			if e.GetEntry().GetState() == completed && e.GetJob().GetKey() == last {
				return ended
			}
			return nil
		})
	}()
	for i := range jobs {
		name := fmt.Sprintf("job%d", i)
		id := d.submit(call(name, "ledger_none", l.args(name))).GetId()
		if i%4 == 2 {
			d.kill()
			d.start()
		}
		d.wait(id, completed)
	}
	if err := <-watched; !errors.Is(err, ended) {
		t.Fatalf("the watch ended: %v", err)
	}
	var want []uint64
	err := d.ReadJournal(d.context(), &macexecv1.ReadJournalRequest{}, func(e *macexecv1.Entry) error {
		if strings.HasPrefix(e.GetKind(), "job.") {
			want = append(want, e.GetSeq())
		}
		return nil
	})
	if err != nil || !slices.Equal(seen, want) {
		t.Errorf("the watcher saw %v, the journal has %v; %v", seen, want, err)
	}
}
