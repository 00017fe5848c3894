package schemas

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The severities of an issue.
const (
	SeverityError   = "error"   // the tool is not offered
	SeverityWarning = "warning" // the tool works, but its author should look
)

// issue is what the loader found in a manifest.
type issue struct {
	severity, pointer, rule, message, hint string
	line                                   int // set where the text could not be read; else the pointer tells
}

// schemaBudget is how many subschemas one value may meet when every reference
// is followed. A validator takes no context, so a schema that could keep it busy
// without end (branches that refer to branches) is refused when it is loaded.
const schemaBudget = 4096

// auditor walks a manifest's schema before it is compiled. It refuses what could
// load something, recurse, or cost without bound, and says what makes a schema
// hard to keep.
type auditor struct {
	base    string // pointer of the schema in the manifest
	input   bool   // a schema of arguments, for which models and people are told more
	defs    map[string]any
	sizes   map[string]int
	walking map[string]bool
	issues  []issue
}

func auditSchema(tree any, base string, input bool) []issue {
	a := &auditor{base: base, input: input, sizes: map[string]int{}, walking: map[string]bool{}}
	root, ok := tree.(map[string]any)
	if !ok {
		a.fail("", "schema", "a schema is an object", "")
		return a.issues
	}
	a.defs, _ = root["$defs"].(map[string]any)
	if s, ok := root["$schema"].(string); ok && s != "https://json-schema.org/draft/2020-12/schema" {
		a.fail("/$schema", "schema_dialect", "only JSON Schema 2020-12 is taken", "leave $schema out")
	}
	if root["type"] != "object" {
		a.fail("", "schema_object", "the schema must say type: object", "")
	}
	if root["additionalProperties"] != false {
		a.fail("", "schema_closed", "the schema must be closed", "add additionalProperties: false")
	}
	size := a.schema(root, "", 0)
	for _, name := range slices.Sorted(maps.Keys(a.defs)) {
		a.definition(name, "/$defs/"+name)
	}
	if size > schemaBudget {
		a.fail("", "schema_budget", fmt.Sprintf("with every reference followed the schema has more than %d parts", schemaBudget), "make it simpler")
	}
	return a.issues
}

func (a *auditor) fail(pointer, rule, message, hint string) {
	a.issues = append(a.issues, issue{severity: SeverityError, pointer: a.base + pointer, rule: rule, message: message, hint: hint})
}

func (a *auditor) warn(pointer, rule, message, hint string) {
	a.issues = append(a.issues, issue{severity: SeverityWarning, pointer: a.base + pointer, rule: rule, message: message, hint: hint})
}

// schema walks one schema and returns its size, at most a little over the budget.
// depth counts property levels: 0 is the whole value, 1 an argument.
func (a *auditor) schema(v any, pointer string, depth int) int {
	s, ok := v.(map[string]any)
	if !ok {
		return 1 // true, false, or something the metaschema refuses
	}
	size := 1
	add := func(n int) { size = min(size+n, schemaBudget+1) }
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		at, value := pointer+Pointer(keyword), s[keyword]
		switch kindOfKeyword(keyword) {
		case keywordSchema:
			add(a.schema(value, at, depth+2))
		case keywordSchemas:
			list, _ := value.([]any)
			for i, item := range list {
				add(a.schema(item, at+"/"+strconv.Itoa(i), depth+2))
			}
		case keywordSchemaMap:
			if keyword == "$defs" && pointer == "" {
				continue // walked once each, by name
			}
			named, _ := value.(map[string]any)
			for _, name := range slices.Sorted(maps.Keys(named)) {
				if keyword == "patternProperties" {
					a.pattern(name, at+Pointer(name))
				}
				next := depth + 1
				if keyword != "properties" || pointer != "" {
					next++ // not an argument of the call
				}
				add(a.schema(named[name], at+Pointer(name), next))
			}
		case keywordForbidden:
			a.fail(at, "schema_reference", fmt.Sprintf("%s is not taken", keyword), "refer only to #/$defs/NAME")
		case keywordUnknown:
			a.warn(at, "schema_keyword", fmt.Sprintf("%s is no keyword of JSON Schema 2020-12, so it has no effect", quoted(keyword)), "")
		case keywordPlain:
		}
	}
	if ref, ok := s["$ref"]; ok {
		add(a.reference(ref, pointer+"/$ref"))
	}
	a.rules(s, pointer, depth)
	return size
}

func (a *auditor) reference(ref any, pointer string) int {
	text, _ := ref.(string)
	name, ok := strings.CutPrefix(text, "#/$defs/")
	name = unescaped(name)
	if _, known := a.defs[name]; !ok || !known {
		a.fail(pointer, "schema_reference", fmt.Sprintf("the reference %s leads nowhere in this schema; nothing else is ever read", quoted(text)),
			"refer only to #/$defs/NAME")
		return 1
	}
	return a.definition(name, pointer)
}

func (a *auditor) definition(name, from string) int {
	if size, ok := a.sizes[name]; ok {
		return size
	}
	if a.walking[name] {
		a.fail(from, "schema_cycle", fmt.Sprintf("%s refers to itself", quoted(name)), "write the levels out that are needed")
		return 1
	}
	a.walking[name] = true
	size := a.schema(a.defs[name], "/$defs"+Pointer(name), 2)
	delete(a.walking, name)
	a.sizes[name] = size
	return size
}

func (a *auditor) pattern(pattern, pointer string) {
	if _, err := regexp.Compile(pattern); err != nil {
		a.fail(pointer, "schema_pattern", "the pattern is not RE2: "+err.Error(), "RE2 has no look-around and no back-references")
		return
	}
	if !strings.HasPrefix(pattern, "^") || !strings.HasSuffix(pattern, "$") {
		a.warn(pointer, "pattern_anchored", "the pattern matches anywhere in the text", "begin it with ^ and end it with $")
	}
}

// rules are about one schema by itself.
func (a *auditor) rules(s map[string]any, pointer string, depth int) {
	if pattern, ok := s["pattern"].(string); ok {
		a.pattern(pattern, pointer+"/pattern")
	}
	if format, ok := s["format"].(string); ok && !slices.Contains(knownFormats(), format) {
		a.fail(pointer+"/format", "schema_format", fmt.Sprintf("the format %s is not known, so it could not be asserted", quoted(format)),
			"known formats: "+strings.Join(knownFormats(), ", "))
	}
	if depth != 1 {
		for _, word := range []string{"writeOnly", "x-macexec"} {
			if v, ok := s[word]; ok && v != false {
				a.fail(pointer+"/"+word, "argument_mark", word+" marks arguments: top-level properties of the input schema", "")
			}
		}
	}
	if _, has := s["properties"]; has && depth > 0 && s["type"] == "object" {
		if s["additionalProperties"] != false && s["unevaluatedProperties"] != false {
			a.warn(pointer, "schema_closed", "the object takes any other property too", "add additionalProperties: false")
		}
	}
	if !a.input {
		return
	}
	bounded := func(keywords ...string) bool {
		return slices.ContainsFunc(keywords, func(k string) bool { _, ok := s[k]; return ok })
	}
	if allows(s, "string") && !bounded("maxLength", "enum", "const", "format", "$ref") {
		a.warn(pointer, "max_length", "the text has no bound", "add maxLength")
	}
	if allows(s, "array") && !bounded("maxItems", "enum", "const", "$ref") {
		a.warn(pointer, "max_items", "the list has no bound", "add maxItems")
	}
	if depth == 1 && strings.HasPrefix(pointer, "/properties/") && !bounded("description", "$ref") {
		a.warn(pointer, "description", "the argument has no description", "say what a caller should send")
	}
}

func allows(s map[string]any, want string) bool {
	switch t := s["type"].(type) {
	case string:
		return t == want
	case []any:
		return slices.Contains(t, any(want))
	default:
		return false
	}
}

type keywordKind int

const (
	keywordUnknown keywordKind = iota
	keywordPlain
	keywordSchema
	keywordSchemas
	keywordSchemaMap
	keywordForbidden
)

func kindOfKeyword(k string) keywordKind {
	switch k {
	case "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
		"unevaluatedItems", "unevaluatedProperties", "contentSchema":
		return keywordSchema
	case "allOf", "anyOf", "oneOf", "prefixItems":
		return keywordSchemas
	case "properties", "patternProperties", "$defs", "dependentSchemas":
		return keywordSchemaMap
	case "$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary",
		"definitions", "dependencies":
		return keywordForbidden
	case "$schema", "$ref", "$anchor", "$comment", "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum",
		"minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
		"maxContains", "minContains", "maxProperties", "minProperties", "required", "dependentRequired",
		"title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "format",
		"contentEncoding", "contentMediaType", "x-macexec":
		return keywordPlain
	default:
		return keywordUnknown
	}
}

// knownFormats are the formats that are asserted.
func knownFormats() []string {
	return []string{
		"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "iri", "iri-reference", "json-pointer",
		"regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
	}
}
