package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"text/template"

	"go.uber.org/goleak"
)

// The effects that a tool of the tests may have; its name is "ledger_" and they.
const (
	none     = "none"
	staged   = "staged"
	external = "external"
)

// built is what TestMain made, for every test.
var built struct { //nolint:gochecknoglobals // set once by TestMain, before any test
	bin     string // the folder of macexec, macexec-keeper
	tools   string // the folder of testtool
	ledgers string // the folder in which each test has its own folder of ledgers
	overlay string // tells the compiler of the manifests of the tests
	faulty  faulty // macexec and macexec-keeper with fault points
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	root, err := os.MkdirTemp("/tmp", "mx") // socket paths are short
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(root)
	if root, err = filepath.EvalSymlinks(root); err == nil {
		err = build(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// build makes the binaries. The tools that read and stage are shipped with this
// daemon: the compiler is told of manifests that are not in the tree.
func build(root string) error {
	built.bin, built.tools, built.ledgers = filepath.Join(root, "bin"), filepath.Join(root, "tools"), filepath.Join(root, "ledgers")
	for _, dir := range []string{built.bin, built.tools, built.ledgers} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	shipped, err := filepath.Abs("../../schemas/tools")
	if err != nil {
		return err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, effects := range []string{none, staged} {
		file := filepath.Join(root, effects+".yaml")
		if err := writeManifest(file, "2026-01-01", effects); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(shipped, "ledger_"+effects+".yaml")] = file
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	built.overlay = filepath.Join(root, "overlay.json")
	if err := os.WriteFile(built.overlay, text, 0o600); err != nil {
		return err
	}
	daemon := []string{"build", "-overlay", built.overlay, "-o", built.bin + "/"}
	if raceBuilt {
		daemon = append(daemon, "-race")
	}
	for _, args := range [][]string{
		append(daemon, "../../cmd/macexec"),
		{"build", "-o", built.bin + "/", "../../cmd/macexec-keeper"},
		{"build", "-o", built.tools + "/", "./testtool"},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("go %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// writeManifest writes the manifest of a tool of the tests.
func writeManifest(file, version, effects string) error {
	manifest, err := template.ParseFiles("testdata/tool.yaml.tmpl")
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	return manifest.Execute(out, map[string]string{
		"Tool": "ledger_" + effects, "Version": version, "Effects": effects, "Ledgers": built.ledgers,
	})
}
