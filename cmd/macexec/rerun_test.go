package main

import (
	"bytes"
	"strings"
	"testing"
)

// A job is run again only after somebody's yes, and the new key is told before it is
// sent.
func TestRerunAsks(t *testing.T) {
	t.Parallel()
	address := answeringDaemon(t)
	for said, want := range map[string]exitCode{
		"y\n": exitCancelled, "YES\n": exitCancelled, // the state of the job that it becomes
		"n\n": exitRefused, "\n": exitRefused, "": exitRefused, "yesterday\n": exitRefused,
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"--address", address, "jobs", "rerun", "unknown", "--key", "cancelled"}, stdio{
			In: strings.NewReader(said), Out: &out, Err: &errs, InTerminal: true, ErrTerminal: true,
			Getenv: environment(map[string]string{"NO_COLOR": ""}), Width: func() int { return 80 },
		})
		if code != want {
			t.Errorf("%q: exit %d, want %d\n%s", said, code, want, errs.String())
		}
		for _, text := range []string{"state:  unknown", "waits for its locks until it is resolved: macexec jobs resolve unknown", "Run it again? [y/N] "} {
			if !strings.Contains(errs.String(), text) {
				t.Errorf("%q: stderr does not say %q:\n%s", said, text, errs.String())
			}
		}
		if (want == exitRefused) != (out.Len() == 0) {
			t.Errorf("%q: stdout:\n%s", said, out.String())
		}
	}
	code, _, errs := execute(t, nil, "--address", address, "jobs", "rerun", "failed", "--yes", "--wait", "0s")
	evidence, key := strings.Index(errs, "state:"), strings.Index(errs, "key: mx-")
	if code != exitFault || evidence < 0 || key < evidence { // a key that this daemon has no state for
		t.Errorf("exit %d, stderr:\n%s", code, errs)
	}
}
