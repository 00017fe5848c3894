package argument_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func tool() *macexecv1.ToolInfo {
	return &macexecv1.ToolInfo{
		Name: "export_video",
		InputSchema: []byte(`{
			"type": "object", "additionalProperties": false,
			"properties": {
				"input": {"type": "string"}, "output": {"type": "string"},
				"format": {"enum": ["mp4", "mov"]}, "include_audio": {"type": "boolean"},
				"crf": {"type": "integer"}, "speed": {"type": "number"},
				"tags": {"type": "array"}, "options": {"type": "object"},
				"frame": {"type": ["integer", "null"]}, "either": {"type": ["string", "integer"]},
				"size": {"$ref": "#/$defs/size"}, "loop": {"$ref": "#/$defs/loop"},
				"any": true, "union": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
				"fixed": {"const": 4}, "password": {"type": "string", "writeOnly": true}
			},
			"$defs": {"size": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
		}`),
		FileArguments: []*macexecv1.FileArgument{
			{Name: "input", Role: macexecv1.FileRole_FILE_ROLE_INPUT},
			{Name: "output", Role: macexecv1.FileRole_FILE_ROLE_OUTPUT},
		},
		SecretArguments: []string{"password"},
	}
}

func build(t *testing.T, from argument.Sources, texts ...string) (string, error) {
	t.Helper()
	var settings []argument.Setting
	for _, text := range texts {
		s, err := argument.Parse(text)
		if err != nil {
			return "", err
		}
		settings = append(settings, s)
	}
	b, err := argument.Of(tool()).Build(settings, from)
	return string(b), err
}

func TestTypesComeFromTheSchema(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"format=mp4":                 `{"format": "mp4"}`,
		"include_audio=true":         `{"include_audio": true}`,
		"include_audio=yes":          `{"include_audio": "yes"}`,
		"include_audio=True":         `{"include_audio": "True"}`,
		"crf=23":                     `{"crf": 23}`,
		"crf= 23":                    `{"crf": " 23"}`,
		"crf=1.5":                    `{"crf": 1.5}`,
		"crf=":                       `{"crf": ""}`,
		"crf=007":                    `{"crf": "007"}`,
		"crf=true":                   `{"crf": "true"}`,
		"crf=9007199254740993":       `{"crf": 9007199254740993}`,
		"speed=1.10":                 `{"speed": 1.10}`,
		"speed=1e400":                `{"speed": 1e400}`,
		"speed=NaN":                  `{"speed": "NaN"}`,
		`tags=["a", 1]`:              `{"tags": ["a", 1]}`,
		`tags=a,b`:                   `{"tags": "a,b"}`,
		`options={"a": 1}`:           `{"options": {"a": 1}}`,
		`frame=null`:                 `{"frame": null}`,
		`frame=3`:                    `{"frame": 3}`,
		`either=3`:                   `{"either": "3"}`,
		`either:=3`:                  `{"either": 3}`,
		`size=3`:                     `{"size": 3}`,
		`loop=3`:                     `{"loop": "3"}`,
		`any=3`:                      `{"any": "3"}`,
		`union=true`:                 `{"union": true}`,
		`union=yes`:                  `{"union": "yes"}`,
		`fixed=4`:                    `{"fixed": 4}`,
		`input=in/clip.mp4`:          `{"input": "in/clip.mp4"}`,
		`not_there=7`:                `{"not_there": "7"}`,
		`not_there:=[7, {"a": 1.0}]`: `{"not_there": [7, {"a": 1.0}]}`,
		`format=@home`:               `{"format": "@home"}`,
		"format=a\"b\\c\nd\x00e":     `{"format": "a\"b\\c\u000ad\u0000e"}`,
		"format=caf\xe9":             "{\"format\": \"caf\xe9\"}",
		`a.b/c=x=y`:                  `{"a.b/c": "x=y"}`,
	} {
		got, err := build(t, argument.Sources{}, setting)
		if err != nil || got != want {
			t.Errorf("-a %q: got %s, %v; want %s", setting, got, err, want)
		}
	}
}

func TestSettingsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	got, err := build(t, argument.Sources{}, "format=mp4", "crf=1", "include_audio=yes")
	if want := `{"format": "mp4", "crf": 1, "include_audio": "yes"}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if got, err := build(t, argument.Sources{}); err != nil || got != "{}" {
		t.Errorf("no settings: got %s, %v", got, err)
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	var uploaded []string
	from := argument.Sources{Upload: func(path string) (string, error) {
		uploaded = append(uploaded, path)
		return "sha256:abc", nil
	}}
	got, err := build(t, from, "input=@/tmp/a b.mp4", "crf=1")
	if want := `{"input": "sha256:abc", "crf": 1}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if len(uploaded) != 1 || uploaded[0] != "/tmp/a b.mp4" {
		t.Errorf("uploaded %q", uploaded)
	}

	uploaded = nil
	if _, err := build(t, from, "input=@/tmp/a.mp4", "password=hunter2"); err == nil || len(uploaded) != 0 {
		t.Errorf("a refused call uploaded %q (%v)", uploaded, err)
	}
	if _, err := build(t, from, "output=@out.mp4"); err == nil || len(uploaded) != 0 {
		t.Errorf("an output argument uploaded %q (%v)", uploaded, err)
	}
	broken := errors.New("broken pipe")
	from.Upload = func(string) (string, error) { return "", broken }
	if _, err := build(t, from, "input=@x"); !errors.Is(err, broken) {
		t.Errorf("got %v, want the upload's error", err)
	}
}

// G11: a secret argument is in no command line, and an error does not repeat it.
func TestSecretsComeFromTheEnvironment(t *testing.T) {
	t.Parallel()
	from := argument.Sources{Env: func(name string) (string, bool) {
		return "hunter2", name == "PASSWORD"
	}}
	got, err := build(t, from, "password=@env:PASSWORD")
	if want := `{"password": "hunter2"}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	for _, setting := range []string{"password=hunter2", `password:="hunter2"`, `password:=hunter2`, `password:="@env:PASSWORD"`} {
		_, err := build(t, from, setting)
		e, ok := errors.AsType[*argument.Error](err)
		if !ok || !strings.Contains(e.Remedy, "@env:") {
			t.Errorf("-a %s: got %v, want a refusal with the remedy", setting, err)
			continue
		}
		if strings.Contains(e.Message+e.Remedy, "hunter2") {
			t.Errorf("-a %s: the error repeats the secret: %s", setting, e.Message)
		}
	}
	if _, err := build(t, from, "password=@env:NOT_SET"); err == nil {
		t.Error("a variable that is not set was accepted")
	}
	if got, err := build(t, argument.Sources{Env: func(string) (string, bool) { return "41", true }}, "crf=@env:N"); err != nil || got != `{"crf": 41}` {
		t.Errorf("a typed value from the environment: got %s, %v", got, err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{{"format"}, {"=mp4"}, {":=1"}, {"crf:=1,2"}, {"crf=1", "crf=2"}} {
		_, err := build(t, argument.Sources{}, settings...)
		if e, ok := errors.AsType[*argument.Error](err); !ok || e.Remedy == "" {
			t.Errorf("%q: got %v, want a refusal with a remedy", settings, err)
		}
	}
}

func FuzzBuild(f *testing.F) {
	for _, s := range []string{"a=b", "crf=1", "crf=-0", "include_audio=true", "tags=[1,2]", "a:={}", "x=\"\\\x00", "=", ":="} {
		f.Add(s)
	}
	schema := argument.Of(tool())
	f.Fuzz(func(t *testing.T, text string) {
		s, err := argument.Parse(text)
		if err != nil {
			return
		}
		got, err := schema.Build([]argument.Setting{s}, argument.Sources{
			Env:    func(string) (string, bool) { return "", false },
			Upload: func(string) (string, error) { return "sha256:0", nil },
		})
		if err == nil && utf8.ValidString(text) && !json.Valid(got) {
			t.Errorf("-a %q makes %q, which is not JSON", text, got)
		}
	})
}
