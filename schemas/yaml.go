package schemas

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// manifestLimits bound a manifest. They are wider than a call's, since an
// operator installs it.
func manifestLimits() Limits {
	return Limits{Bytes: 256 << 10, Depth: 48, NumberLength: 64, Exponent: 400}
}

// yamlText is a YAML document as JSON text, with its names in the order they
// were written, and the line of every value by JSON pointer.
type yamlText struct {
	json  []byte
	lines map[string]int
}

// line is where a pointer's value stands, or the nearest thing around it.
func (y *yamlText) line(pointer string) int {
	for {
		if n, ok := y.lines[pointer]; ok || pointer == "" {
			return n
		}
		pointer = pointer[:strings.LastIndexByte(pointer, '/')]
	}
}

const keywordYAML = "yaml"

// yamlError says what macexec does not take in a YAML text.
type yamlError struct {
	line    int
	pointer string
	message string
}

func (e *yamlError) Error() string { return e.message }

// readYAML turns one YAML document into JSON text. It takes the plain part of
// YAML only: no anchors and aliases (a few lines could grow without end), no tags,
// no merge keys, no duplicate names, numbers as JSON writes them.
func readYAML(raw []byte, l Limits) (*yamlText, error) {
	if len(raw) > l.Bytes {
		return nil, &yamlError{message: fmt.Sprintf("the file has %d bytes; at most %d are taken", len(raw), l.Bytes)}
	}
	if at := invalidUTF8(raw); at >= 0 {
		return nil, &yamlError{message: fmt.Sprintf("the file is not UTF-8 at byte %d", at)}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(raw)))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &yamlError{message: "the file is empty"}
		}
		return nil, &yamlError{message: "not YAML: " + err.Error(), line: lineIn(err.Error())}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &yamlError{message: "there is more than one document in the file", line: second.Line}
	}
	w := &yamlWriter{limits: l, number: jsonNumber(), text: &yamlText{lines: map[string]int{}}}
	if len(document.Content) != 1 {
		return nil, &yamlError{message: "the file is empty"}
	}
	if err := w.value(document.Content[0], "", 1); err != nil {
		return nil, err
	}
	w.text.json = w.out
	return w.text, nil
}

type yamlWriter struct {
	limits Limits
	number *regexp.Regexp
	out    []byte
	text   *yamlText
}

func (w *yamlWriter) value(n *yaml.Node, pointer string, depth int) error {
	fail := func(format string, args ...any) error {
		return &yamlError{line: n.Line, pointer: pointer, message: fmt.Sprintf(format, args...)}
	}
	if depth > w.limits.Depth {
		return fail("nested deeper than %d", w.limits.Depth)
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fail("anchors and aliases are not taken; write the value out")
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return fail("tags such as %s are not taken", n.Tag)
	}
	w.text.lines[pointer] = n.Line
	switch n.Kind {
	case yaml.MappingNode:
		seen := map[string]bool{}
		w.out = append(w.out, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i]
			if name.Kind != yaml.ScalarNode || name.Anchor != "" || name.ShortTag() == "!!merge" {
				return &yamlError{line: name.Line, pointer: pointer, message: "a name must be a plain text"}
			}
			if seen[name.Value] {
				return &yamlError{line: name.Line, pointer: pointer, message: fmt.Sprintf("the name %s stands twice", quoted(name.Value))}
			}
			seen[name.Value] = true
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.string(name.Value)
			w.out = append(w.out, ':')
			if err := w.value(n.Content[i+1], pointer+Pointer(name.Value), depth+1); err != nil {
				return err
			}
		}
		w.out = append(w.out, '}')
	case yaml.SequenceNode:
		w.out = append(w.out, '[')
		for i, item := range n.Content {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			if err := w.value(item, pointer+"/"+strconv.Itoa(i), depth+1); err != nil {
				return err
			}
		}
		w.out = append(w.out, ']')
	default:
		return w.scalar(n, fail)
	}
	return nil
}

func (w *yamlWriter) scalar(n *yaml.Node, fail func(string, ...any) error) error {
	switch n.ShortTag() {
	case "!!null":
		w.out = append(w.out, "null"...)
	case "!!bool":
		w.out = append(w.out, strings.ToLower(n.Value)...)
	case "!!int", "!!float":
		if !w.number.MatchString(n.Value) {
			return fail("write the number %s as JSON does, or in quotes if it is a text", quoted(n.Value))
		}
		w.out = append(w.out, n.Value...)
	case "!!str", "!!timestamp": // a date without quotes is meant as a text
		w.string(n.Value)
	default:
		return fail("a value of type %s is not taken", n.ShortTag())
	}
	return nil
}

func (w *yamlWriter) string(s string) {
	w.out, _ = jsontext.AppendQuote(w.out, s) // it fails only for what is not UTF-8
}

func jsonNumber() *regexp.Regexp {
	return regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
}

func lineIn(message string) int {
	m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(message)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
