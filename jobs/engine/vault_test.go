package engine

import (
	"bytes"
	"strings"
	"testing"

	"github.com/macexec/macexec/jobs"
)

func newTestVault(t *testing.T, fill byte) *vault {
	t.Helper()
	v, err := newVault(bytes.Repeat([]byte{fill}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestG11SealedSecretsOpenOnlyInTheirPlace: not in another job, for another
// argument, or with another host's key.
func TestG11SealedSecretsOpenOnlyInTheirPlace(t *testing.T) {
	t.Parallel()
	v := newTestVault(t, 1)
	sealed := v.seal("job", "/token", "hunter2")
	if bytes.Contains(sealed, []byte("hunter2")) {
		t.Fatal("the sealed secret shows")
	}
	if got, err := v.open("job", "/token", sealed); err != nil || got != "hunter2" {
		t.Fatalf("open: %q, %v", got, err)
	}
	for name, open := range map[string]func() (string, error){
		"another job":      func() (string, error) { return v.open("job2", "/token", sealed) },
		"another argument": func() (string, error) { return v.open("job", "/other", sealed) },
		"another key":      func() (string, error) { return newTestVault(t, 2).open("job", "/token", sealed) },
		"cut short":        func() (string, error) { return v.open("job", "/token", sealed[:len(sealed)-1]) },
		"empty":            func() (string, error) { return v.open("job", "/token", nil) },
	} {
		if got, err := open(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: opened %q, %v", name, got, err)
		}
	}
}

func TestSecretDigestsDependOnKeyPlaceAndValue(t *testing.T) {
	t.Parallel()
	v := newTestVault(t, 1)
	seen := map[string]string{}
	for name, digest := range map[string]string{
		"one":           v.digest("/a", "x"),
		"other value":   v.digest("/a", "y"),
		"other place":   v.digest("/b", "x"),
		"moved border":  v.digest("/a\x00", "x"),
		"another host":  newTestVault(t, 2).digest("/a", "x"),
		"empty secret":  v.digest("/a", ""),
		"empty pointer": v.digest("", "x"),
	} {
		if other, twice := seen[digest]; twice {
			t.Errorf("%s and %s share a digest", name, other)
		}
		seen[digest] = name
	}
	if v.digest("/a", "x") != newTestVault(t, 1).digest("/a", "x") {
		t.Error("a digest is not the same after a restart")
	}
}

func TestMasking(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"/a": "hunter2", "/b": ""}
	if got := masked("login hunter2 failed for hunter2", secrets); got != "login ****** failed for ******" {
		t.Errorf("masked: %q", got)
	}
	if got := maskedBytes([]byte("\xffhunter2\x00"), secrets); !bytes.Equal(got, []byte("\xff******\x00")) {
		t.Errorf("masked bytes: %q", got)
	}
}

func TestKeyMustHave32Bytes(t *testing.T) {
	t.Parallel()
	if _, err := newVault([]byte("short")); err == nil {
		t.Error("a short key was taken")
	}
}

// TestBindingDifferences: each field of a binding, changed alone, is seen; the
// digest covers all of them.
func TestBindingDifferences(t *testing.T) {
	t.Parallel()
	base := func() jobs.Binding {
		return jobs.Binding{
			Tool: "t", Version: "1", ManifestDigest: "m", Fingerprint: "f", Requester: "r", PolicyVersion: "p",
			Inputs: map[string]string{"/in": "1"}, Programs: map[string]string{"/bin/x": "2"},
		}
	}
	if d := bindingDifference(base(), base()); d != "" {
		t.Errorf("equal bindings differ: %s", d)
	}
	sealedBase, err := sealBinding(base())
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(*jobs.Binding){
		"tool":            func(b *jobs.Binding) { b.Tool = "u" },
		"version":         func(b *jobs.Binding) { b.Version = "2" },
		"manifest":        func(b *jobs.Binding) { b.ManifestDigest = "n" },
		"fingerprint":     func(b *jobs.Binding) { b.Fingerprint = "g" },
		"requester":       func(b *jobs.Binding) { b.Requester = "s" },
		"input changed":   func(b *jobs.Binding) { b.Inputs["/in"] = "9" },
		"input gone":      func(b *jobs.Binding) { delete(b.Inputs, "/in") },
		"input new":       func(b *jobs.Binding) { b.Inputs["remove:a"] = "9" },
		"program changed": func(b *jobs.Binding) { b.Programs["/bin/x"] = "9" },
		"program gone":    func(b *jobs.Binding) { delete(b.Programs, "/bin/x") },
		"program new":     func(b *jobs.Binding) { b.Programs["/bin/y"] = "9" },
	}
	for name, change := range changes {
		now := base()
		change(&now)
		if bindingDifference(base(), now) == "" {
			t.Errorf("%s is not seen", name)
		}
		sealed, err := sealBinding(now)
		if err != nil || sealed.Digest == sealedBase.Digest {
			t.Errorf("%s: the digest is the same (%v)", name, err)
		}
	}
	laxer := base()
	laxer.PolicyVersion = "q"
	if d := bindingDifference(base(), laxer); d != "" {
		t.Errorf("another policy alone voids an approval: %s", d)
	}
}

// TestG11LinesOfASecretAreMasked: tools print a key line by line.
func TestG11LinesOfASecretAreMasked(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"/key": "-----BEGIN-----\nQmFzZTY0\n}\n-----END-----\n"}
	if got := masked("QmFzZTY0\n{a: }\n-----END-----", secrets); got != "******\n{a: }\n******" {
		t.Errorf("masked: %q", got)
	}
	if got := masked("-----BEGIN-----\nQmFzZTY0\n}\n-----END-----\n", secrets); got != "******" {
		t.Errorf("the whole: %q", got)
	}
}
