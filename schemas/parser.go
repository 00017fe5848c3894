package schemas

import (
	"fmt"
	"regexp"
	"strings"
)

// Parser turns what a program prints into a value for expressions. Its kinds:
//
//	json       one strict JSON value
//	key_value  lines "name<separator>value"; a map of texts
//	regex      the named groups of the pattern's first match; with All, a list of
//	           one map for each match
//	text       the whole text, without space around it
//
// The empty Parser gives nil.
type Parser struct {
	Kind      string `json:"kind"`
	Separator string `json:"separator"` // key_value; empty: "="
	Pattern   string `json:"pattern"`   // regex
	All       bool   `json:"all"`       // regex
}

// parserLimits bound what a program may print for a parser.
func parserLimits() Limits {
	return Limits{Bytes: 16 << 20, Depth: 64, NumberLength: 400, Exponent: 400}
}

// Parse parses a program's output. The error says what is wrong with it and does
// not repeat it.
func (p Parser) Parse(out []byte) (any, error) {
	if len(out) > parserLimits().Bytes {
		return nil, fmt.Errorf("the output has %d bytes; at most %d are parsed", len(out), parserLimits().Bytes)
	}
	switch p.Kind {
	case "":
		return nil, nil
	case "json":
		value, findings := Parse(out, parserLimits())
		if len(findings) > 0 {
			return nil, fmt.Errorf("the output is not JSON: %s", findings[0].Message)
		}
		return value, nil
	case "key_value":
		return p.keyValues(validText(out))
	case "regex":
		return p.matches(validText(out))
	case "text":
		return strings.TrimSpace(validText(out)), nil
	default:
		return nil, fmt.Errorf("there is no parser %s", quoted(p.Kind))
	}
}

func (p Parser) keyValues(text string) (any, error) {
	separator := p.Separator
	if separator == "" {
		separator = "="
	}
	values := map[string]any{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, separator)
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			continue // a heading, or an empty line
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("the output names %s twice", quoted(name))
		}
		values[name] = strings.TrimSpace(value)
	}
	return values, nil
}

func (p Parser) matches(text string) (any, error) {
	re, err := regexp.Compile(p.Pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern does not compile: %w", err)
	}
	limit := 1
	if p.All {
		limit = -1
	}
	list := []any{}
	for _, match := range re.FindAllStringSubmatch(text, limit) {
		groups := map[string]any{}
		for i, name := range re.SubexpNames() {
			if name != "" {
				groups[name] = match[i]
			}
		}
		list = append(list, groups)
	}
	if p.All {
		return list, nil
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the output does not match the pattern")
	}
	return list[0], nil
}

func validText(out []byte) string { return strings.ToValidUTF8(string(out), "\ufffd") }
