package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Marshal returns the message as one JSON object on one line, without a newline
// at its end. The same message always gives the same bytes:
//
//   - fields have the names and the order of the .proto file; keys of maps are sorted;
//   - scalars and lists are present even when they are zero, false or empty;
//     messages, optional scalars and JSON text that are not set are left out;
//   - enums are lower-case words without prefix, "" for an unspecified one;
//   - bytes that hold JSON text (arguments, result, schemas, a journal entry's
//     data) are JSON values, their numbers as written; text that is not JSON is a
//     string. Other bytes are strings, with U+FFFD for what is not UTF-8;
//   - all integers are JSON numbers; times are RFC 3339 in UTC.
//
// The only errors are a number that JSON does not have (NaN, ±Inf) and a message
// of a kind that the API does not use.
func Marshal(m proto.Message) ([]byte, error) {
	return appendMessage(nil, m.ProtoReflect())
}

// jsonText reports whether a bytes field holds JSON text.
func jsonText(field protoreflect.FullName) bool {
	switch field {
	case "macexec.v1.Call.arguments",
		"macexec.v1.SubmitJobRequest.arguments",
		"macexec.v1.CheckCallRequest.arguments",
		"macexec.v1.Job.result",
		"macexec.v1.ToolInfo.input_schema",
		"macexec.v1.ToolInfo.output_schema",
		"macexec.v1.ConfigField.value",
		"macexec.v1.ConfigField.file_value",
		"macexec.v1.Entry.data":
		return true
	}
	return false
}

func appendMessage(b []byte, m protoreflect.Message) ([]byte, error) {
	if t, ok := m.Interface().(*timestamppb.Timestamp); ok {
		return append(append(append(b, '"'), t.AsTime().UTC().Format(time.RFC3339Nano)...), '"'), nil
	}
	if name := m.Descriptor().FullName(); name.Parent() == "google.protobuf" {
		return nil, fmt.Errorf("%s has no form as a document", name)
	}
	b = append(b, '{')
	empty := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		v := m.Get(f)
		if f.Kind() == protoreflect.BytesKind && jsonText(f.FullName()) && len(v.Bytes()) == 0 {
			continue
		}
		if !empty {
			b = append(b, ',')
		}
		empty = false
		b = append(append(append(b, '"'), f.Name()...), '"', ':')
		var err error
		if b, err = appendField(b, f, v); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	var err error
	switch {
	case f.IsMap():
		keys := make([]protoreflect.MapKey, 0, v.Map().Len())
		for k := range v.Map().Range {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(x, y protoreflect.MapKey) int { return strings.Compare(x.String(), y.String()) })
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k.String()), ':')
			if b, err = appendValue(b, f.MapValue(), v.Map().Get(k)); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case f.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, f, v.List().Get(i)); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	default:
		return appendValue(b, f, v)
	}
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.EnumKind:
		return appendString(b, word(f.Enum(), v.Enum())), nil
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), nil
	case protoreflect.StringKind:
		return appendString(b, v.String()), nil
	case protoreflect.BytesKind:
		if jsonText(f.FullName()) {
			return appendJSON(b, v.Bytes()), nil
		}
		return appendString(b, string(v.Bytes())), nil
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case protoreflect.DoubleKind:
		return appendNumber(b, f, v.Float())
	default:
		return nil, fmt.Errorf("%s: kind %s has no form as a document", f.FullName(), f.Kind())
	}
}

func appendNumber(b []byte, f protoreflect.FieldDescriptor, n float64) ([]byte, error) {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("%s: %v is not a JSON number", f.FullName(), n)
	}
	text, err := json.Marshal(n)
	return append(b, text...), err
}

// appendJSON appends a JSON value without white space around its tokens, or a
// string when the text is no JSON value. Numbers keep their text.
func appendJSON(b, text []byte) []byte {
	// encoding/json takes strings with broken UTF-8 for valid; a document never has them.
	if !utf8.Valid(text) || !json.Valid(text) {
		return appendString(b, string(text))
	}
	buf := bytes.NewBuffer(b)
	if err := json.Compact(buf, text); err != nil {
		return appendString(b, string(text))
	}
	return buf.Bytes()
}

// appendString appends a JSON string, with U+FFFD for each byte that is not UTF-8.
func appendString(b []byte, s string) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string and a buffer give no error
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
}
