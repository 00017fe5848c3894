package keeper

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestSpecCarriesBytes(t *testing.T) {
	t.Parallel()
	want := Spec{Token: "t", Launch: Launch{
		Argv: Strings{"/x", "", "\xff\xfe", "ü", "a\nb"}, Env: Strings{"A=\x80"}, Dir: "/\xff",
		Confine: Confine{Read: Strings{"/\xfe"}},
	}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Spec
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := json.Marshal(Strings{"a\x00b"}); err == nil {
		t.Error("a NUL byte was let through")
	}
}

func TestEnvironmentTagCannotBeForged(t *testing.T) {
	t.Parallel()
	got := Environment([]string{"MACEXEC_ATTEMPT=x", "A=1", "MACEXEC_ATTEMPT=y"}, "z")
	if diff := cmp.Diff([]string{"A=1", "MACEXEC_ATTEMPT=z"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSeatbeltProfile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Confine{
		"closed": {
			Read:  Strings{"/Users/a/in put"},
			Write: Strings{`/private/var/macexec/jobs/j/a1/work`, `/Volumes/odd "quoted" \ name`},
			Deny:  Strings{"/private/var/macexec/jobs/j/a1/keeper"},
		},
		"network": {Write: Strings{"/private/var/macexec/jobs/j/a1/work"}, Network: true},
	} {
		got := seatbeltProfile("/opt/homebrew/Cellar/ffmpeg/8/bin/ffmpeg", c)
		golden := filepath.Join("testdata", "seatbelt-"+name+".sb")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMainRefusesOtherCalls(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"hold"}, {"launch", "x"}, {"help"}} {
		if code := Main(args); code != exitUsage {
			t.Errorf("%q: %d", args, code)
		}
	}
}
