package schemas

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// maxFindings is how many findings one answer holds.
const maxFindings = 64

// explainer turns a validator's error tree into findings. Messages are made from
// the typed kinds, never from the library's text: that rounds large numbers and
// repeats values.
type explainer struct {
	root    any // the value judged
	schema  any // its schema, for descriptions; may be nil
	secrets []string
}

func (x *explainer) explain(e *jsonschema.ValidationError) []Finding {
	found := x.flatten(e)
	slices.SortStableFunc(found, func(a, b Finding) int {
		return strings.Compare(a.Pointer+"\x00"+a.Keyword+"\x00"+a.Message, b.Pointer+"\x00"+b.Keyword+"\x00"+b.Message)
	})
	found = slices.Compact(found)
	if len(found) > maxFindings {
		more := len(found) - maxFindings + 1
		found = append(found[:maxFindings-1], Finding{Keyword: "more", Message: fmt.Sprintf("%d more findings are not shown", more)})
	}
	return found
}

func (x *explainer) flatten(e *jsonschema.ValidationError) []Finding {
	pointer := Pointer(e.InstanceLocation...)
	one := func(keyword, message, hint string) []Finding {
		return []Finding{{Pointer: pointer, Keyword: keyword, Message: message, Hint: hint}}
	}
	if x.secret(pointer) {
		return one(keywordOf(e.ErrorKind), "the secret value does not fit its schema", "look at what the tool's schema says about "+quoted(pointer))
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		var all []Finding
		for _, cause := range e.Causes {
			all = append(all, x.flatten(cause)...)
		}
		return all
	case *kind.AnyOf:
		return one("anyOf", "it fits none of the allowed forms: "+x.forms(e), "send one of the forms in full")
	case *kind.OneOf:
		if len(k.Subschemas) > 1 {
			return one("oneOf", fmt.Sprintf("it fits more than one form (%d and %d); exactly one is wanted", k.Subschemas[0]+1, k.Subschemas[1]+1),
				"leave out what belongs to the other form")
		}
		return one("oneOf", "it fits none of the allowed forms: "+x.forms(e), "send exactly one of the forms in full")
	case *kind.Required:
		return x.missing(pointer, "required", "", k.Missing)
	case *kind.DependentRequired:
		return x.missing(pointer, "dependentRequired", k.Prop, k.Missing)
	case *kind.AdditionalProperties:
		var all []Finding
		for _, name := range k.Properties {
			all = append(all, Finding{
				Pointer: pointer + Pointer(name), Keyword: "additionalProperties",
				Message: fmt.Sprintf("there is no property %s here", quoted(name)), Hint: x.allowed(pointer, name),
			})
		}
		return all
	case *kind.PropertyNames:
		return []Finding{{
			Pointer: pointer + Pointer(k.Property), Keyword: "propertyNames",
			Message: fmt.Sprintf("the name %s is not allowed here", quoted(k.Property)), Hint: "choose another name",
		}}
	case *kind.Type:
		want := words(k.Want)
		return one("type", fmt.Sprintf("%s is wanted, but this is %s", want, article(k.Got)), "send "+want+typeHint(k.Got, k.Want))
	case *kind.Enum:
		return one("enum", "only these values are allowed: "+values(k.Want), x.nearest(k.Want, e.InstanceLocation))
	case *kind.Const:
		return one("const", "only this value is allowed: "+values([]any{k.Want}), "send exactly that")
	case *kind.Format:
		return one("format", "it is not a valid "+k.Want, "send a "+k.Want+formatHint(k.Want))
	case *kind.Pattern:
		return one("pattern", "it does not match the pattern "+k.Want, x.describe(pointer))
	case *kind.MinLength:
		return one("minLength", fmt.Sprintf("it has %d characters; at least %d are wanted", k.Got, k.Want), "send a longer text")
	case *kind.MaxLength:
		return one("maxLength", fmt.Sprintf("it has %d characters; at most %d are allowed", k.Got, k.Want), "send a shorter text")
	case *kind.MinItems:
		return one("minItems", fmt.Sprintf("it has %d items; at least %d are wanted", k.Got, k.Want), "send more items")
	case *kind.MaxItems:
		return one("maxItems", fmt.Sprintf("it has %d items; at most %d are allowed", k.Got, k.Want), "send fewer items")
	case *kind.MinProperties:
		return one("minProperties", fmt.Sprintf("it has %d properties; at least %d are wanted", k.Got, k.Want), "send more properties")
	case *kind.MaxProperties:
		return one("maxProperties", fmt.Sprintf("it has %d properties; at most %d are allowed", k.Got, k.Want), "send fewer properties")
	case *kind.UniqueItems:
		return one("uniqueItems", fmt.Sprintf("items %d and %d are equal", k.Duplicates[0], k.Duplicates[1]), "send each item once")
	case *kind.Minimum:
		return one("minimum", fmt.Sprintf("%s is less than the minimum %s", x.number(e), exact(k.Want)), "send at least "+exact(k.Want))
	case *kind.Maximum:
		return one("maximum", fmt.Sprintf("%s is greater than the maximum %s", x.number(e), exact(k.Want)), "send at most "+exact(k.Want))
	case *kind.ExclusiveMinimum:
		return one("exclusiveMinimum", fmt.Sprintf("%s is not greater than %s", x.number(e), exact(k.Want)), "send more than "+exact(k.Want))
	case *kind.ExclusiveMaximum:
		return one("exclusiveMaximum", fmt.Sprintf("%s is not less than %s", x.number(e), exact(k.Want)), "send less than "+exact(k.Want))
	case *kind.MultipleOf:
		return one("multipleOf", fmt.Sprintf("%s is not a multiple of %s", x.number(e), exact(k.Want)), "send a multiple of "+exact(k.Want))
	case *kind.FalseSchema:
		return one("false", "nothing is allowed here", "leave it out")
	case *kind.Not:
		return one("not", "this value is excluded", x.describe(pointer))
	default:
		word := keywordOf(e.ErrorKind)
		return one(word, "it breaks the rule "+quoted(word)+" of its schema", x.describe(pointer))
	}
}

// keywordOf is the JSON Schema keyword of an error kind.
func keywordOf(k jsonschema.ErrorKind) string {
	if path := k.KeywordPath(); len(path) > 0 {
		return path[0]
	}
	return "schema"
}

func (x *explainer) missing(pointer, keyword, because string, names []string) []Finding {
	var all []Finding
	for _, name := range names {
		message := fmt.Sprintf("the property %s is missing", quoted(name))
		if because != "" {
			message += ", which " + quoted(because) + " needs"
		}
		hint := "add " + quoted(name)
		if what := x.describe(pointer + Pointer(name)); what != "" {
			hint += ": " + what
		}
		all = append(all, Finding{Pointer: pointer, Keyword: keyword, Message: message, Hint: hint})
	}
	return all
}

// forms says in short why each branch of an anyOf or oneOf was not met.
func (x *explainer) forms(e *jsonschema.ValidationError) string {
	var reasons []string
	for i, cause := range e.Causes {
		if i == 8 {
			reasons = append(reasons, "…")
			break
		}
		found := x.flatten(cause)
		if len(found) == 0 {
			continue
		}
		reason := found[0].Message
		if own := Pointer(e.InstanceLocation...); found[0].Pointer != own {
			reason = found[0].Pointer + ": " + reason
		}
		reasons = append(reasons, fmt.Sprintf("(%d) %s", i+1, reason))
	}
	return strings.Join(reasons, "; ")
}

// secret reports whether a pointer is a secret or something inside one.
func (x *explainer) secret(pointer string) bool {
	return slices.ContainsFunc(x.secrets, func(s string) bool {
		return pointer == s || strings.HasPrefix(pointer, s+"/")
	})
}

// property finds the schema of a pointer, as far as plain properties lead.
func (x *explainer) property(pointer string) map[string]any {
	at, _ := x.schema.(map[string]any)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if pointer == "" || at == nil {
			break
		}
		properties, _ := at["properties"].(map[string]any)
		at, _ = properties[unescaped(token)].(map[string]any)
	}
	return at
}

// describe gives the author's own words about a property.
func (x *explainer) describe(pointer string) string {
	text, _ := x.property(pointer)["description"].(string)
	return text
}

func (x *explainer) allowed(pointer, wrong string) string {
	properties, _ := x.property(pointer)["properties"].(map[string]any)
	if len(properties) == 0 {
		return "leave it out"
	}
	names := make([]string, 0, len(properties))
	for name := range properties {
		if sameButForm(name, wrong) {
			return "write it " + quoted(name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return "leave it out; the names here are " + quotedList(names)
}

func (x *explainer) nearest(want []any, location []string) string {
	if got, ok := lookup(x.root, location).(string); ok {
		for _, w := range want {
			if text, ok := w.(string); ok && sameButForm(text, got) {
				return "send " + quoted(text) + ", written exactly so"
			}
		}
	}
	return "send one of them, written exactly so"
}

// sameButForm reports whether two words differ only in case, "-", "_", "." and
// spaces.
func sameButForm(a, b string) bool {
	plain := strings.NewReplacer("-", "", "_", "", " ", "", ".", "")
	return strings.EqualFold(plain.Replace(a), plain.Replace(b))
}

// number gives the number judged as it was written.
func (x *explainer) number(e *jsonschema.ValidationError) string {
	if n, ok := lookup(x.root, e.InstanceLocation).(json.Number); ok {
		return string(n)
	}
	return "the number"
}

func lookup(v any, tokens []string) any {
	for _, t := range tokens {
		switch at := v.(type) {
		case map[string]any:
			v = at[t]
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// exact writes a bound in full: the schema's own decimal text has one.
func exact(r *big.Rat) string {
	places, _ := r.FloatPrec()
	return r.FloatString(places)
}

func values(list []any) string {
	shown := make([]string, 0, len(list))
	for i, v := range list {
		if i == 40 {
			shown = append(shown, "…")
			break
		}
		text, err := json.Marshal(v)
		if err != nil {
			continue
		}
		shown = append(shown, string(text))
	}
	return strings.Join(shown, ", ")
}

func words(types []string) string {
	with := make([]string, 0, len(types))
	for _, t := range types {
		with = append(with, article(t))
	}
	return strings.Join(with, " or ")
}

func article(t string) string {
	switch t {
	case "null":
		return "null"
	case "array", "object", "integer":
		return "an " + t
	default:
		return "a " + t
	}
}

func typeHint(got string, want []string) string {
	switch {
	case got == "string" && slices.ContainsFunc(want, func(w string) bool { return w != "string" }):
		return ", without quotes around it"
	case got == "null":
		return ", or leave it out"
	case slices.Contains(want, "string"):
		return ", in quotes"
	default:
		return ""
	}
}

func formatHint(format string) string {
	switch format {
	case "date-time":
		return " such as 2026-11-01T12:00:00Z"
	case "date":
		return " such as 2026-11-01"
	case "uuid":
		return " such as 123e4567-e89b-12d3-a456-426614174000"
	default:
		return ""
	}
}
