package schemas

import (
	"embed"
	"errors"
	"strings"
)

//go:embed *.schema.json
var documentFiles embed.FS

// DocumentSchema judges one kind of document that macexec stores or exchanges.
type DocumentSchema struct {
	name   string
	text   []byte
	schema *compiledSchema
}

// Documents lists the names that Document knows.
func Documents() []string {
	entries, err := documentFiles.ReadDir(".")
	if err != nil {
		return nil // an embedded folder can always be read
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".schema.json"))
	}
	return names
}

// Document returns the schema of a kind of document: job, event, error, manifest,
// config and so on. Compiling takes a millisecond or so; keep what it returns.
func Document(name string) (*DocumentSchema, bool) {
	text, err := documentFiles.ReadFile(name + ".schema.json")
	if err != nil {
		return nil, false
	}
	tree, findings := Parse(text, manifestLimits())
	if len(findings) > 0 {
		return nil, false
	}
	schema, err := compileSchema(tree)
	if err != nil {
		return nil, false
	}
	return &DocumentSchema{name: name, text: text, schema: schema}, true
}

// Text is the JSON Schema itself.
func (d *DocumentSchema) Text() []byte { return d.text }

// Validate judges a JSON document.
func (d *DocumentSchema) Validate(raw []byte) []Finding {
	value, findings := Parse(raw, documentLimits())
	if len(findings) > 0 {
		return findings
	}
	return d.schema.validate(value, nil)
}

// ValidateYAML judges a document written in YAML and returns it as JSON. It is
// strict: no duplicate names, no anchors, no tags.
func (d *DocumentSchema) ValidateYAML(raw []byte) ([]byte, []Finding) {
	text, findings := d.readYAML(raw)
	if text == nil {
		return nil, findings
	}
	for i := range findings {
		findings[i].Message = atLine(text.line(findings[i].Pointer), findings[i].Message)
	}
	return text.json, findings
}

// readYAML is ValidateYAML with the lines apart; nothing is read of what is not YAML.
func (d *DocumentSchema) readYAML(raw []byte) (*yamlText, []Finding) {
	text, err := readYAML(raw, manifestLimits())
	if err != nil {
		return nil, []Finding{yamlFinding(err)}
	}
	return text, d.Validate(text.json)
}

// documentLimits are for macexec's own documents, which hold arguments, results
// and log lines inside them.
func documentLimits() Limits {
	return Limits{Bytes: 64 << 20, Depth: 64, NumberLength: 400, Exponent: 400}
}

func yamlFinding(err error) Finding {
	f := Finding{Keyword: keywordYAML, Message: err.Error()}
	if y, ok := errors.AsType[*yamlError](err); ok {
		f.Pointer, f.Message = y.pointer, atLine(y.line, y.message)
	}
	return f
}
