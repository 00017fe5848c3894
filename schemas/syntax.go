package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits bound what Parse takes, so that nothing behind it can be made to work
// without end by a small text.
type Limits struct {
	Bytes        int // length of the whole text
	Depth        int // objects and arrays inside each other
	NumberLength int // characters of one number
	Exponent     int // largest power of ten, up or down
}

// DefaultLimits are the limits for a call's arguments.
func DefaultLimits() Limits {
	return Limits{Bytes: 1 << 20, Depth: 32, NumberLength: 64, Exponent: 400}
}

// The keywords of syntax findings.
const (
	keywordJSON      = "json"
	keywordUTF8      = "utf8"
	keywordDuplicate = "duplicate_name"
	keywordDepth     = "depth"
	keywordSize      = "size"
	keywordNumber    = "number"
)

// Parse reads raw as exactly one JSON value and gives the syntax verdict: UTF-8,
// no duplicate names, no lone surrogates, nothing after the value, all within
// the limits. No finding means that the value is good.
//
// The value is made of map[string]any, []any, string, json.Number, bool and nil.
// A number keeps its text. Schema, policy, fingerprint and tool all get this one
// tree.
func Parse(raw []byte, l Limits) (any, []Finding) {
	if len(raw) > l.Bytes {
		return nil, []Finding{{
			Keyword: keywordSize,
			Message: fmt.Sprintf("the text has %d bytes; at most %d are taken", len(raw), l.Bytes),
			Hint:    "send less, or upload the data as a file and name it",
		}}
	}
	if at := invalidUTF8(raw); at >= 0 {
		return nil, []Finding{{
			Keyword: keywordUTF8,
			Message: fmt.Sprintf("the text is not UTF-8 at byte %d", at),
			Hint:    "send UTF-8; escape arbitrary bytes, for instance as base64",
		}}
	}
	if len(bytes.TrimLeft(raw, " \t\r\n")) == 0 {
		return nil, []Finding{{
			Keyword: keywordJSON, Message: "there is no JSON value at byte 0: the text is empty",
			Hint: "send an object; {} if there are no arguments",
		}}
	}
	p := &parser{raw: raw, limits: l, dec: jsontext.NewDecoder(bytes.NewReader(raw))}
	value, err := p.value()
	if err != nil {
		return nil, append(p.findings, p.explain(err))
	}
	after := p.dec.InputOffset()
	if _, err := p.dec.ReadToken(); !errors.Is(err, io.EOF) {
		p.add("", keywordJSON, fmt.Sprintf("more text follows the JSON value, after byte %d", after), "send exactly one value")
	}
	if len(p.findings) > 0 {
		return nil, p.findings
	}
	return value, nil
}

type parser struct {
	raw      []byte
	limits   Limits
	dec      *jsontext.Decoder
	findings []Finding
}

// maxSyntaxFindings is how many numbers out of bounds are worth telling.
const maxSyntaxFindings = 16

var errTooDeep = errors.New("too deep")

func (p *parser) value() (any, error) {
	token, err := p.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		text := token.String()
		if why := p.limits.number(text); why != "" && len(p.findings) < maxSyntaxFindings {
			p.add(string(p.dec.StackPointer()), keywordNumber,
				fmt.Sprintf("%s, at byte %d", why, p.dec.InputOffset()-int64(len(text))),
				"send a shorter number, or text if it is not a quantity")
		}
		return json.Number(text), nil
	case '{':
		if p.dec.StackDepth() > p.limits.Depth {
			return nil, errTooDeep
		}
		object := map[string]any{}
		for p.dec.PeekKind() != '}' {
			name, err := p.dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			if object[key], err = p.value(); err != nil {
				return nil, err
			}
		}
		_, err := p.dec.ReadToken()
		return object, err
	default: // '['; the decoder gives no other token where a value begins
		if p.dec.StackDepth() > p.limits.Depth {
			return nil, errTooDeep
		}
		array := []any{}
		for p.dec.PeekKind() != ']' {
			v, err := p.value()
			if err != nil {
				return nil, err
			}
			array = append(array, v)
		}
		_, err := p.dec.ReadToken()
		return array, err
	}
}

func (p *parser) add(pointer, keyword, message, hint string) {
	p.findings = append(p.findings, Finding{Pointer: pointer, Keyword: keyword, Message: message, Hint: hint})
}

// explain turns the decoder's error into a finding in our words.
func (p *parser) explain(err error) Finding {
	if errors.Is(err, errTooDeep) {
		return Finding{
			Pointer: string(p.dec.StackPointer()), Keyword: keywordDepth,
			Message: fmt.Sprintf("objects and arrays are nested deeper than %d, at byte %d", p.limits.Depth, p.dec.InputOffset()),
			Hint:    "send a flatter value",
		}
	}
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok { // the reader is a byte slice, so only its end can be left
		return Finding{
			Keyword: keywordJSON, Message: fmt.Sprintf("the JSON value ends too early, at byte %d", len(p.raw)),
			Hint: "send the whole value: close every object, array and text",
		}
	}
	at := syntax.ByteOffset
	f := Finding{Pointer: string(syntax.JSONPointer), Keyword: keywordJSON}
	switch {
	case errors.Is(syntax.Err, jsontext.ErrDuplicateName):
		f.Keyword = keywordDuplicate
		f.Message = fmt.Sprintf("the name %s stands twice in one object, at byte %d", quoted(syntax.JSONPointer.LastToken()), at)
		f.Hint = "send each name once"
	case errors.Is(syntax.Err, io.ErrUnexpectedEOF), errors.Is(syntax.Err, io.EOF):
		f.Message = fmt.Sprintf("the JSON value ends too early, at byte %d", at)
		f.Hint = "send the whole value: close every object, array and text"
	case p.surrogateAt(at):
		f.Keyword = keywordUTF8
		f.Message = fmt.Sprintf("half a surrogate pair is escaped at byte %d", at)
		f.Hint = `send the character itself, or both halves, as in \ud83c\udfac`
	default:
		f.Message = fmt.Sprintf("not JSON at byte %d: %v", at, syntax.Err)
		f.Hint = "send strict JSON: double quotes, no comments, no trailing commas, no NaN"
	}
	return f
}

// surrogateAt reports whether a surrogate escape is written at an offset.
func (p *parser) surrogateAt(at int64) bool {
	if at < 0 || at+6 > int64(len(p.raw)) {
		return false
	}
	escape := p.raw[at : at+6]
	if escape[0] != '\\' || escape[1] != 'u' {
		return false
	}
	code, err := strconv.ParseUint(string(escape[2:]), 16, 16)
	return err == nil && code >= 0xd800 && code <= 0xdfff
}

// number says why a number's text is out of bounds, or "".
func (l Limits) number(text string) string {
	if len(text) > l.NumberLength {
		return fmt.Sprintf("a number has %d characters; at most %d are taken", len(text), l.NumberLength)
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		power := strings.TrimLeft(strings.TrimLeft(text[i+1:], "+-"), "0")
		if n, err := strconv.Atoi("0" + power); err != nil || n > l.Exponent {
			return fmt.Sprintf("a number has an exponent beyond %d", l.Exponent)
		}
	}
	return ""
}

func invalidUTF8(raw []byte) int {
	for i := 0; i < len(raw); {
		if raw[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}
