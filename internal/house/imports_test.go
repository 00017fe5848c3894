package house_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// room is a folder with its subfolders, except those that are rooms of their own.
type room struct {
	dir  string
	may  []string // the other rooms that its product code may import
	only []string // when not nil: the only modules outside the standard library it may use
	why  string
}

// faultRoom is the one room below internal that the product imports: in a release it is
// empty.
const faultRoom = "internal/fault"

// rooms is the direction of imports. Every package belongs to a room, and every
// room exists.
func rooms() []room {
	std := []string{}
	return []room{
		{dir: "jobs", only: std, why: "the leaf of the domain: every room speaks its words, so it can know no other"},
		{dir: "jobs/engine", may: []string{"jobs", "policy", "schemas", "executor", "executor/keeper", faultRoom}, why: "the one place where order lives; what keeps records is behind jobs.Store, who asks is behind a face"},
		{dir: "policy", why: "a decision depends on its input alone"},
		{dir: "schemas", why: "verdicts on syntax and schema depend on bytes alone"},
		{dir: "executor", may: []string{"executor/keeper", faultRoom}, why: "it knows a command and an outcome, never a job"},
		{dir: "executor/keeper", may: []string{faultRoom}, only: []string{"golang.org/x/sys", "golang.org/x/net", "github.com/landlock-lsm/go-landlock", "github.com/elastic/go-seccomp-bpf"}, why: "the keeper's binary is small, so that a start costs a millisecond or two"},
		{dir: "launchd", why: "everything that is macOS, and nothing that is macexec"},
		{dir: "proto", why: "the words on the wire; what they mean is told elsewhere"},
		{dir: "store", may: []string{"jobs", faultRoom}, why: "it keeps records and cannot start anything, even by mistake"},
		{dir: "server", may: []string{"jobs", "jobs/engine", "proto"}, why: "a face converts between the wire and the engine; it decides nothing"},
		{dir: "telemetry", may: []string{"jobs", "jobs/engine"}, why: "it tells what happened and decides nothing"},
		{dir: "client", may: []string{"proto"}, why: "what other programs import; it knows the wire and nothing behind it"},
		{dir: "cmd/macexec", may: []string{"jobs", "jobs/engine", "policy", "schemas", "executor", "executor/keeper", "launchd", "proto", "store", "server", "client", "telemetry", "testdata/media"}, why: "the only place that wires"},
		{dir: "cmd/macexec-keeper", may: []string{"executor/keeper"}, only: std, why: "as executor/keeper"},
		{dir: faultRoom, only: std, why: "nothing in a release, so any room that stores or starts something may have its points"},
		{dir: "internal/breaks", only: std, why: "tests only"},
		{dir: "internal/endtoend", only: std, why: "tests only, and the program that they let a daemon run"},
		{dir: "internal/house", why: "tests only"},
		{dir: "internal/bench", why: "measures only"},
		{dir: "testdata/media", only: std, why: "files only"},
	}
}

// ban keeps an import to the rooms that are for it.
type ban struct {
	path   string   // this package and those below it
	unless []string // the rooms that may
	why    string
}

func bans() []ban {
	return []ban{
		{"go.etcd.io/bbolt", []string{"store"}, "nothing but the store knows how records lie on disk"},
		{"google.golang.org/grpc", []string{"proto", "server", "client", "cmd/macexec"}, "only a face knows the wire"},
		{"google.golang.org/protobuf", []string{"proto", "server", "client", "cmd/macexec"}, "only a face knows the wire"},
		{"google.golang.org/genproto", []string{"server", "client"}, "only a face knows the wire"},
		{"github.com/spf13/cobra", []string{"cmd/macexec"}, "only the command line has commands"},
		{"cel.dev/cel-go", []string{"schemas", "policy"}, "expressions live in manifests and policies"},
		{"github.com/santhosh-tekuri/jsonschema", []string{"schemas"}, "one room gives the schema verdict"},
		{"go.yaml.in/yaml", []string{"schemas"}, "one room reads what people write"},
		{"os/exec", []string{"executor", "executor/keeper", "launchd", "cmd/macexec", "client"}, "only the executor starts tools; launchd starts launchctl, the command line its own daemon, the client the user's ssh"},
		{"github.com/prometheus", []string{"telemetry"}, "one room counts"},
		{"go.opentelemetry.io", []string{"telemetry"}, "one room traces"},
		{"unsafe", []string{"executor", "executor/keeper", "launchd", "proto"}, "only system calls and generated code need it"},
		{"testing", nil, "what helps tests never enters a binary"},
	}
}

// pure rooms take everything as arguments: no files, no network, no clock.
func pureRooms() []string { return []string{"jobs", "policy"} }

func impure() []string {
	return []string{"os", "io/fs", "io/ioutil", "net", "syscall", "golang.org/x/sys", "math/rand", "crypto/rand", "log"}
}

// roomOf returns the room that a folder belongs to.
func roomOf(dir string) (room, bool) {
	var found room
	for _, r := range rooms() {
		if under(dir, r.dir) && len(r.dir) > len(found.dir) {
			found = r
		}
	}
	return found, found.dir != ""
}

// under reports whether name is top or lies below it.
func under(name, top string) bool { return name == top || strings.HasPrefix(name, top+"/") }

func TestImportsFollowTheRooms(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		from, ok := roomOf(f.dir)
		if !ok {
			t.Errorf("%s belongs to no room of the table", f.path)
			continue
		}
		for _, path := range f.imports() {
			dir, ours := strings.CutPrefix(path, modulePath+"/")
			if !ours {
				if from.only != nil && !f.test && isModule(path) && !slices.ContainsFunc(from.only, func(m string) bool { return under(path, m) }) {
					t.Errorf("%s imports %s; %s may use only %v besides the standard library: %s", f.path, path, from.dir, from.only, from.why)
				}
				continue
			}
			to, ok := roomOf(dir)
			switch {
			case !ok:
				t.Errorf("%s imports %s, which belongs to no room", f.path, path)
			case to.dir == from.dir:
			case under(dir, "internal") && dir != faultRoom:
				t.Errorf("%s imports %s; internal holds what measures and tests the product", f.path, path)
			case strings.HasPrefix(to.dir, "cmd/"):
				t.Errorf("%s imports %s; nobody imports a command", f.path, path)
			case f.test:
			case strings.HasSuffix(dir, "test"):
				t.Errorf("%s imports %s; what helps tests never enters a binary", f.path, path)
			case !slices.Contains(from.may, to.dir):
				t.Errorf("%s imports %s; %s may import %v: %s", f.path, path, from.dir, from.may, from.why)
			}
		}
	}
}

func TestBannedImports(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		from, _ := roomOf(f.dir)
		if f.test {
			continue
		}
		for _, path := range f.imports() {
			for _, b := range bans() {
				if under(path, b.path) && !slices.Contains(b.unless, from.dir) {
					t.Errorf("%s imports %s: %s", f.path, path, b.why)
				}
			}
			if slices.Contains(pureRooms(), from.dir) && slices.ContainsFunc(impure(), func(p string) bool { return under(path, p) }) {
				t.Errorf("%s imports %s; %s does no I/O and asks nobody", f.path, path, from.dir)
			}
		}
	}
}

// TestTheTablesNameWhatExists fails when a room or a forbidden package has gone, so
// that a rule cannot outlive what it is about.
func TestTheTablesNameWhatExists(t *testing.T) {
	t.Parallel()
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output() // a binary built with -trimpath does not know it
	if err != nil {
		t.Fatal(err)
	}
	inUse := map[string]bool{}
	for _, f := range tree(t) {
		if r, ok := roomOf(f.dir); ok {
			inUse[r.dir] = true
		}
	}
	exists := func(path string) bool {
		if isModule(path) {
			return strings.Contains(string(gomod), "\t"+path+" ") || strings.Contains(string(gomod), "\t"+path+"/")
		}
		info, err := os.Stat(filepath.Join(strings.TrimSpace(string(goroot)), "src", filepath.FromSlash(path)))
		return err == nil && info.IsDir()
	}
	for _, r := range rooms() {
		if !inUse[r.dir] {
			t.Errorf("room %s has no Go file", r.dir)
		}
		for _, m := range r.may {
			if other, ok := roomOf(m); !ok || other.dir != m {
				t.Errorf("room %s may import %s, which is no room", r.dir, m)
			}
		}
		for _, m := range r.only {
			if !exists(m) {
				t.Errorf("room %s may use %s, which is not in go.mod", r.dir, m)
			}
		}
	}
	for _, b := range bans() {
		if !exists(b.path) {
			t.Errorf("%s is banned but is neither in go.mod nor in the standard library", b.path)
		}
	}
	for _, p := range impure() {
		if !exists(p) {
			t.Errorf("%s is banned but is neither in go.mod nor in the standard library", p)
		}
	}
}

// isModule reports whether a path lies outside the standard library.
func isModule(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}
