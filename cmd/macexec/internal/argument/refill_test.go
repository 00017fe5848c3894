package argument_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/macexec/macexec/cmd/macexec/internal/argument"
)

const marker = "macexec_secret"

func TestHidden(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string][]string{
		`{}`: nil,
		`{"b": {"macexec_secret": true}, "a": {"macexec_secret":true}, "c": 1}`:                                            {"a", "b"},
		`{"a": {"macexec_secret": false}, "b": {"macexec_secret": true, "x": true}, "c": {"d": {"macexec_secret": true}}}`: nil,
		`[1]`: nil,
		``:    nil,
	} {
		if got := argument.Hidden([]byte(arguments), marker); !slices.Equal(got, want) {
			t.Errorf("%s hides %q, want %q", arguments, got, want)
		}
	}
}

// G11, and the same call again: only the secrets are given anew, and nothing else is
// written in another way.
func TestRefill(t *testing.T) {
	t.Parallel()
	const stored = `{"crf":1.50,"password":{"macexec_secret":true},"tags":["\u00e9",9007199254740993]}`
	env := func(name string) (string, bool) { return `hun"ter2`, name == "PASSWORD" }
	refill := func(arguments string, texts ...string) (string, error) {
		var settings []argument.Setting
		for _, text := range texts {
			set, err := argument.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			settings = append(settings, set)
		}
		b, err := argument.Of(tool()).Refill([]byte(arguments), argument.Hidden([]byte(arguments), marker), settings, env)
		return string(b), err
	}
	got, err := refill(stored, "password=@env:PASSWORD")
	if want := `{"crf": 1.50, "password": "hun\"ter2", "tags": ["\u00e9",9007199254740993]}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	const plain = ` {"crf" : 1} `
	if got, err := refill(plain); err != nil || got != plain {
		t.Errorf("got %q, %v; want it as it was", got, err)
	}
	for want, texts := range map[string][]string{
		"nobody is given them: password": nil,
		"is not secret":                  {"password=@env:PASSWORD", "crf=2"},
		"is given twice":                 {"password=@env:PASSWORD", "password=@env:PASSWORD"},
		"a command line can be read":     {"password=hunter2"},
		"is not set":                     {"password=@env:NOPE"},
	} {
		_, err := refill(stored, texts...)
		if e, ok := errors.AsType[*argument.Error](err); !ok || !strings.Contains(e.Message, want) || e.Remedy == "" || strings.Contains(e.Message, "hunter2") {
			t.Errorf("%q: %v, want %q", texts, err, want)
		}
	}
}

func FuzzRefill(f *testing.F) {
	f.Add([]byte(`{"a": {"macexec_secret": true}, "b": [1, {"c": null}], "é\"": "x"}`))
	f.Add([]byte(`{"a": {"macexec_secret": true}, "a": 1}`))
	f.Fuzz(func(t *testing.T, stored []byte) {
		hidden := argument.Hidden(stored, marker)
		var settings []argument.Setting
		for _, name := range hidden {
			settings = append(settings, argument.Setting{Name: name, Text: "@env:X"})
		}
		got, err := argument.Of(tool()).Refill(stored, hidden, settings, func(string) (string, bool) { return "again", true })
		if err != nil {
			return
		}
		if left := argument.Hidden(got, marker); len(left) > 0 {
			t.Errorf("%s became %s, which still hides %q", stored, got, left)
		}
	})
}
