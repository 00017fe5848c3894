package server

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// repair replaces what is not UTF-8 in all strings of a message. It writes only
// what it has to change, since messages may be shared.
func repair(m protoreflect.Message) {
	for f, v := range m.Range {
		switch {
		case f.IsMap():
			repairMap(f, v.Map())
		case f.IsList():
			repairList(f, v.List())
		case f.Message() != nil:
			repair(v.Message())
		case f.Kind() == protoreflect.StringKind && !utf8.ValidString(v.String()):
			m.Set(f, valid(v.String()))
		}
	}
}

func repairList(f protoreflect.FieldDescriptor, list protoreflect.List) {
	for i := range list.Len() {
		switch v := list.Get(i); {
		case f.Message() != nil:
			repair(v.Message())
		case f.Kind() == protoreflect.StringKind && !utf8.ValidString(v.String()):
			list.Set(i, valid(v.String()))
		}
	}
}

func repairMap(f protoreflect.FieldDescriptor, m protoreflect.Map) {
	type change struct {
		from, to protoreflect.MapKey
		value    protoreflect.Value
	}
	var changes []change
	for k, v := range m.Range {
		c := change{from: k, to: k, value: v}
		if f.MapValue().Message() != nil {
			repair(v.Message())
		} else if f.MapValue().Kind() == protoreflect.StringKind {
			c.value = valid(v.String())
		}
		if f.MapKey().Kind() == protoreflect.StringKind {
			c.to = valid(k.String()).MapKey()
		}
		if f.MapValue().Message() == nil && (c.to.String() != k.String() || c.value.String() != v.String()) {
			changes = append(changes, c)
		}
	}
	for _, c := range changes {
		m.Clear(c.from)
		m.Set(c.to, c.value)
	}
}

func valid(s string) protoreflect.Value {
	return protoreflect.ValueOfString(strings.ToValidUTF8(s, "\uFFFD"))
}
