package schemas

import (
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// compiledSchema is a JSON Schema ready to judge values.
type compiledSchema struct {
	tree     any // the schema itself
	compiled *jsonschema.Schema
}

var errNoLoading = errors.New("nothing is loaded")

// noLoader refuses every reference out of a schema, so that none can make the
// daemon read a file or a network address.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errNoLoading }

// compileSchema compiles a 2020-12 schema. Formats are asserted, patterns are
// RE2, and nothing is loaded. The error is in our words.
func compileSchema(tree any) (s *compiledSchema, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("the schema compiler failed: %v", r)
		}
	}()
	const url = "mem:///schema.json"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(url, tree); err != nil {
		return nil, errors.New("the schema cannot be used: " + err.Error())
	}
	compiled, err := c.Compile(url)
	if err != nil {
		if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
			if v, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
				if found := (&explainer{root: tree}).explain(v); len(found) > 0 {
					return nil, &schemaError{found[0]}
				}
			}
		}
		return nil, errors.New("the schema does not compile: " + err.Error())
	}
	return &compiledSchema{tree: tree, compiled: compiled}, nil
}

// schemaError says where a schema is not a schema.
type schemaError struct{ finding Finding }

func (e *schemaError) Error() string { return "not a JSON Schema: " + e.finding.Message }

// validate judges a value that Parse made. secrets are the pointers of values
// that no finding may tell anything about.
func (s *compiledSchema) validate(value any, secrets []string) (findings []Finding) {
	// The validator is known to have crashed on odd numbers; whatever it does, the
	// daemon goes on and the answer is no.
	defer func() {
		if r := recover(); r != nil {
			findings = []Finding{{Keyword: KeywordInternal, Message: "macexec failed while it checked this value; that is a fault in macexec"}}
		}
	}()
	err := s.compiled.Validate(value)
	if err == nil {
		return nil
	}
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return []Finding{{Keyword: KeywordInternal, Message: "macexec could not check this value; that is a fault in macexec"}}
	}
	x := &explainer{root: value, schema: s.tree, secrets: secrets}
	findings = x.explain(invalid)
	if len(findings) == 0 {
		return []Finding{{Keyword: "schema", Message: "the value does not fit its schema"}}
	}
	return findings
}
