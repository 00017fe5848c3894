package endtoend

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// faulty is the second set of binaries: built with fault points, also inside bbolt.
// It is made once, by the first test that needs it.
type faulty struct {
	once sync.Once
	bin  string
	err  error
}

// needFaulty returns the folder of the binaries with fault points.
func needFaulty(t *testing.T) string {
	t.Helper()
	built.faulty.once.Do(func() {
		root := filepath.Join(filepath.Dir(built.bin), "faulty")
		built.faulty.bin = filepath.Join(root, "bin")
		built.faulty.err = buildFaulty(root, built.faulty.bin)
	})
	if built.faulty.err != nil {
		t.Fatal(built.faulty.err)
	}
	return built.faulty.bin
}

func buildFaulty(root, bin string) error {
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return err
	}
	bolt := filepath.Join(root, "bbolt")
	if err := patchBolt(bolt); err != nil {
		return err
	}
	mod := filepath.Join(root, "faulty.mod")
	content, err := os.ReadFile("../../go.mod")
	if err != nil {
		return err
	}
	if err := os.WriteFile(mod, fmt.Appendf(content, "\nreplace %s => %s\n", boltModule, bolt), 0o600); err != nil {
		return err
	}
	if content, err = os.ReadFile("../../go.sum"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "faulty.sum"), content, 0o600); err != nil {
		return err
	}
	flags := []string{"build", "-tags", "faults", "-modfile", mod, "-overlay", built.overlay, "-o"}
	daemon := append(slices.Clone(flags), bin+"/")
	if raceBuilt {
		daemon = append(daemon, "-race")
	}
	if err := goTool(append(daemon, "../../cmd/macexec")...); err != nil {
		return err
	}
	if err := goTool(append(slices.Clone(flags), bin+"/", "../../cmd/macexec-keeper")...); err != nil {
		return err
	}
	return goTool(append(flags, filepath.Join(bin, otherBuild)+"/", "-ldflags=-s", "../../cmd/macexec-keeper")...)
}

// otherBuild is the folder of a keeper that does the same and is another file.
const otherBuild = "other"

const boltModule = "go.etcd.io/bbolt"

// boltPatches are the places at which bbolt writes a commit. Each must be there once:
// a new bbolt that writes in another way stops the build of the tests.
func boltPatches() []struct{ old, now string } {
	return []struct{ old, now string }{
		{"tx.db.ops.writeAt(buf, offset)", `tx.db.faultyWrite("data.write", buf, offset)`},
		{"beforeSyncDataPages struct{}\n\t\tif err := fdatasync(tx.db)", "\n\t\tif err := tx.db.faultySync(\"data.sync\")"},
		{"tx.db.ops.writeAt(buf, int64(p.Id())*int64(tx.db.pageSize))", `tx.db.faultyWrite("meta.write", buf, int64(p.Id())*int64(tx.db.pageSize))`},
		{"beforeSyncMetaPage struct{}\n\t\tif err := fdatasync(tx.db)", "\n\t\tif err := tx.db.faultySync(\"meta.sync\")"},
	}
}

// faultyBolt asks the store, which reaches into bbolt by its logger.
const faultyBolt = `package bbolt

func (db *DB) fault(step string) error {
	if asked, ok := db.Logger().(interface{ Fault(string) error }); ok {
		return asked.Fault(step)
	}
	return nil
}

func (db *DB) faultyWrite(step string, b []byte, at int64) (int, error) {
	if err := db.fault(step); err != nil {
		return 0, err
	}
	return db.ops.writeAt(b, at)
}

func (db *DB) faultySync(step string) error {
	if err := db.fault(step); err != nil {
		return err
	}
	return fdatasync(db)
}
`

// patchBolt makes a copy of the bbolt that macexec uses, with fault points in it.
func patchBolt(to string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", boltModule).Output()
	if err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		return err
	}
	file := filepath.Join(to, "tx.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, p := range boltPatches() {
		if n := bytes.Count(text, []byte(p.old)); n != 1 {
			return fmt.Errorf("this bbolt has %q %d times, want it once; the fault points need to be looked at", p.old, n)
		}
		text = bytes.Replace(text, []byte(p.old), []byte(p.now), 1)
	}
	return replaceFiles(map[string]string{file: string(text), filepath.Join(to, "fault.go"): faultyBolt})
}

// replaceFiles writes files whose old versions may be read-only.
func replaceFiles(contents map[string]string) error {
	for path, text := range contents {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func goTool(args ...string) error {
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

// A release has no fault points: neither their code nor their names. The build for
// these tests has them, so the words looked for are the right ones.
func TestReleaseHasNoFaultPoints(t *testing.T) {
	t.Parallel()
	words := []string{"MACEXEC_FAULTS", "keeper.released", "internal/fault.hold"}
	for _, name := range []string{"macexec", "macexec-keeper"} {
		for dir, want := range map[string]bool{built.bin: false, needFaulty(t): true} {
			path := filepath.Join(dir, name)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range words {
				if got := bytes.Contains(content, []byte(word)); got != want {
					t.Errorf("%s has %q: %v, want %v", path, word, got, want)
				}
			}
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tagged := false
			for _, s := range info.Settings {
				tagged = tagged || s.Key == "-tags" && s.Value == "faults"
			}
			if tagged != want {
				t.Errorf("%s is built with the tag: %v, want %v", path, tagged, want)
			}
		}
	}
}
