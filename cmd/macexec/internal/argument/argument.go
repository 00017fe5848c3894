package argument

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Setting is one -a of the command line.
type Setting struct {
	Name string
	Text string
	JSON bool // it was given as name:=JSON
}

// Error is a setting that is refused, and what to do instead.
type Error struct {
	Message string
	Remedy  string
}

func (e *Error) Error() string { return e.Message }

// Parse reads name=value or name:=JSON. It never repeats the value in an error,
// since it may be a secret.
func Parse(text string) (Setting, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return Setting{}, &Error{"an argument (-a) has no \"=\"", "write -a name=value, or -a name:=JSON"}
	}
	name, isJSON := strings.CutSuffix(name, ":")
	if name == "" {
		return Setting{}, &Error{"an argument (-a) has no name before its \"=\"", "write -a name=value, or -a name:=JSON"}
	}
	return Setting{Name: name, Text: value, JSON: isJSON}, nil
}

// Sources is where values come from that are not in the setting itself.
type Sources struct {
	// Env looks up an environment variable.
	Env func(name string) (string, bool)
	// Upload stores a local file with the daemon and returns its reference.
	Upload func(path string) (string, error)
}

const fromEnv = "@env:"

// Build writes the settings as one JSON object, in their order. Everything that
// can be refused is refused before the first upload.
func (s Schema) Build(settings []Setting, from Sources) ([]byte, error) {
	values := make([]string, len(settings))
	for i, set := range settings {
		if slices.ContainsFunc(settings[:i], func(earlier Setting) bool { return earlier.Name == set.Name }) {
			return nil, &Error{fmt.Sprintf("the argument %q is given twice", set.Name), "give each name once; a list is name:='[\"a\", \"b\"]'"}
		}
		value, err := s.value(set, from.Env)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	for i, set := range settings {
		if path, ok := s.upload(set); ok {
			reference, err := from.Upload(path)
			if err != nil {
				return nil, err
			}
			values[i] = quote(reference)
		}
	}
	text := []byte{'{'}
	for i, set := range settings {
		if i > 0 {
			text = append(text, ',', ' ')
		}
		text = append(text, quote(set.Name)...)
		text = append(text, ':', ' ')
		text = append(text, values[i]...)
	}
	return append(text, '}'), nil
}

// value is the JSON text of a setting; of a file to upload it is not known yet.
func (s Schema) value(set Setting, env func(string) (string, bool)) (string, error) {
	variable, isEnv := strings.CutPrefix(set.Text, fromEnv)
	isEnv = isEnv && !set.JSON
	if slices.Contains(s.secrets, set.Name) && !isEnv {
		return "", &Error{
			fmt.Sprintf("the argument %q is secret, and a command line can be read by others", set.Name),
			fmt.Sprintf("put it into an environment variable and write -a %s=@env:NAME, or use --args with a file or -", set.Name),
		}
	}
	if set.JSON {
		if !json.Valid([]byte(set.Text)) {
			return "", &Error{
				fmt.Sprintf("the value of %q is not JSON", set.Name),
				fmt.Sprintf("write -a %s=value for plain text; use --args to send malformed JSON to the daemon's syntax verdict", set.Name),
			}
		}
		return set.Text, nil
	}
	text := set.Text
	if isEnv {
		value, ok := env(variable)
		if !ok {
			return "", &Error{fmt.Sprintf("the environment variable %q is not set", variable), "export it, then call again"}
		}
		text = value
	}
	if _, ok := s.upload(set); ok {
		return "", nil
	}
	if path, ok := strings.CutPrefix(text, "@"); ok && !isEnv && s.files[set.Name] == macexecv1.FileRole_FILE_ROLE_OUTPUT {
		return "", &Error{
			fmt.Sprintf("the argument %q says where the output goes, so there is nothing to upload", set.Name),
			fmt.Sprintf("write -a %s=%s for a path inside the project, or use --download DIR to fetch the output", set.Name, path),
		}
	}
	return s.typed(set.Name, text), nil
}

// upload returns the path of a setting that names a local file to upload.
func (s Schema) upload(set Setting) (string, bool) {
	path, ok := strings.CutPrefix(set.Text, "@")
	return path, ok && !set.JSON && !strings.HasPrefix(set.Text, fromEnv) &&
		s.files[set.Name] == macexecv1.FileRole_FILE_ROLE_INPUT
}

// typed writes text as the first type of the schema that it fits, else as a string.
func (s Schema) typed(name, text string) string {
	for _, t := range s.types[name] {
		if t == "string" {
			break
		}
		if fits(t, text) {
			return text
		}
	}
	return quote(text)
}

// fits reports whether text is JSON of the type, as it would be sent: with no
// white space around it, and a number with its digits as typed. An integer is any
// number, since whether 1.5 is one is for the schema verdict to say.
func fits(jsonType, text string) bool {
	if text == "" || !json.Valid([]byte(text)) || strings.TrimSpace(text) != text {
		return false
	}
	found := typeOf(json.RawMessage(text))
	return found == jsonType || (found == "number" && jsonType == "integer")
}

// quote writes a JSON string. Bytes that are not UTF-8 stay as they are, so that
// the daemon's syntax verdict names them and nothing is silently changed.
func quote(text string) string {
	b := make([]byte, 0, len(text)+2)
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
