package argument

import (
	"encoding/json"
	"slices"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Schema is what the command line needs to know of a tool's arguments.
type Schema struct {
	tool    string
	types   map[string][]string
	files   map[string]macexecv1.FileRole
	secrets []string
}

// Of reads the schema of a tool. A schema that it does not understand makes every
// value a string.
func Of(tool *macexecv1.ToolInfo) Schema {
	s := Schema{
		tool:    tool.GetName(),
		types:   map[string][]string{},
		files:   map[string]macexecv1.FileRole{},
		secrets: tool.GetSecretArguments(),
	}
	for _, f := range tool.GetFileArguments() {
		s.files[f.GetName()] = f.GetRole()
	}
	var root struct {
		Properties map[string]node            `json:"properties"`
		Defs       map[string]json.RawMessage `json:"$defs"`
	}
	if json.Unmarshal(tool.GetInputSchema(), &root) != nil {
		return s
	}
	for name, property := range root.Properties {
		s.types[name] = property.types(root.Defs, 0)
	}
	return s
}

// node is a subschema, as far as it tells a value's type.
type node struct {
	Type  json.RawMessage   `json:"type"`
	Enum  []json.RawMessage `json:"enum"`
	Const json.RawMessage   `json:"const"`
	Ref   string            `json:"$ref"`
	AnyOf []node            `json:"anyOf"` //nolint:tagliatelle // JSON Schema's own name
	OneOf []node            `json:"oneOf"` //nolint:tagliatelle // as above
}

// UnmarshalJSON also takes the schemas true and false, which tell no type.
func (n *node) UnmarshalJSON(text []byte) error {
	type plain node
	var p plain
	if json.Unmarshal(text, &p) == nil {
		*n = node(p)
	}
	return nil
}

// types lists the types that a subschema allows, in its order; none: not known.
func (n *node) types(defs map[string]json.RawMessage, depth int) []string {
	const maxDepth = 8 // a schema that refers to itself tells no type
	if depth > maxDepth {
		return nil
	}
	var found []string
	add := func(types ...string) {
		for _, t := range types {
			if !slices.Contains(found, t) {
				found = append(found, t)
			}
		}
	}
	var one string
	var many []string
	switch {
	case json.Unmarshal(n.Type, &one) == nil:
		add(one)
	case json.Unmarshal(n.Type, &many) == nil:
		add(many...)
	case len(n.Enum) > 0:
		for _, value := range n.Enum {
			add(typeOf(value))
		}
	case len(n.Const) > 0:
		add(typeOf(n.Const))
	}
	const local = "#/$defs/"
	if len(n.Ref) > len(local) && n.Ref[:len(local)] == local {
		var target node
		if json.Unmarshal(defs[n.Ref[len(local):]], &target) == nil {
			add(target.types(defs, depth+1)...)
		}
	}
	for _, branch := range slices.Concat(n.AnyOf, n.OneOf) {
		add(branch.types(defs, depth+1)...)
	}
	return found
}

// typeOf names the JSON type of a value.
func typeOf(value json.RawMessage) string {
	switch value[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}
