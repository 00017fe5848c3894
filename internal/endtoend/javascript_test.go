package endtoend

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"image/png"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// The example in JavaScript does what it says while the daemon is killed under its
// upload and under its watch; and a second run under the same key starts nothing.
func TestTheJavaScriptExample(t *testing.T) {
	t.Parallel()
	needs(t, "node")
	if _, err := exec.LookPath("magick"); err != nil {
		needs(t, "convert", "identify")
	}
	example, err := filepath.Abs("../../examples/javascript")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(example, "node_modules")); err != nil {
		t.Skip("SKIPPED, NOT TESTED: its packages are not there; make for-tests installs them")
	}
	d := startDaemon(t)
	dir := t.TempDir()
	const width, height = 2400, 2400
	source := filepath.Join(dir, "noise.bmp")
	if err := os.WriteFile(source, noisyBMP(width, height), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(result string, meanwhile func(ended <-chan error)) (stdout, stderr string) {
		cmd := exec.CommandContext(d.context(), "node", "convert.mjs", filepath.Join(d.state, "macexec.sock"), "from-node", source, result)
		cmd.Dir = example
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		meanwhile(ended)
		if err := <-ended; err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
		return out.String(), said.String()
	}
	result := filepath.Join(dir, "result.png")
	stdout, said := run(result, func(ended <-chan error) {
		for reached := false; !reached; {
			select {
			case err := <-ended:
				t.Fatalf("it ended before it was broken: %v", err)
			case <-time.After(time.Millisecond):
				reached = hasBytes(t, filepath.Join(d.state, "blobs", "incoming", "*"), 1<<20)
			}
		}
		d.kill()
		d.start()
		running := errors.New("running")
		err := d.Watch(d.context(), &macexecv1.WatchJobsRequest{Key: "from-node"}, func(e *macexecv1.Event) error {
			if e.GetEntry().GetState() == macexecv1.JobState_JOB_STATE_RUNNING {
				return running
			}
			return nil
		})
		if !errors.Is(err, running) {
			t.Fatal(err)
		}
		d.kill()
		d.start()
	})
	var answer struct{ Width, Height int }
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || answer.Width != width || answer.Height != height {
		t.Errorf("the result is %s, %v", stdout, err)
	}
	content, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	if config, err := png.DecodeConfig(bytes.NewReader(content)); err != nil || config.Width != width {
		t.Errorf("the artifact: %v, %v", config, err)
	}
	if !strings.Contains(said, "trying again") {
		t.Errorf("it was not broken:\n%s", said)
	}
	if _, said := run(filepath.Join(dir, "again.png"), func(<-chan error) {}); !strings.Contains(said, "nothing new was started") {
		t.Errorf("the second run:\n%s", said)
	}
}

// noisyBMP is an image of a size that is neither uploaded nor converted at once.
func noisyBMP(width, height int) []byte {
	const header = 54
	pixels := width * height * 3
	b := make([]byte, header+pixels)
	copy(b, "BM")
	binary.LittleEndian.PutUint32(b[2:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[10:], header)
	binary.LittleEndian.PutUint32(b[14:], 40)
	binary.LittleEndian.PutUint32(b[18:], uint32(width))
	binary.LittleEndian.PutUint32(b[22:], uint32(height))
	binary.LittleEndian.PutUint16(b[26:], 1)
	binary.LittleEndian.PutUint16(b[28:], 24)
	random := rand.New(rand.NewPCG(1, 2))
	for i := header; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], random.Uint64())
	}
	return b
}
