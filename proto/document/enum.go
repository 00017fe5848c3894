package document

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word returns the document's word for an enum value: "completed" for
// JOB_STATE_COMPLETED, "" for an unspecified value, and "unrecognized_<number>"
// for a number that this version of the API does not know.
func Word(e protoreflect.Enum) string { return word(e.Descriptor(), e.Number()) }

func word(d protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := d.Values().ByNumber(n)
	switch {
	case v == nil:
		return "unrecognized_" + strconv.Itoa(int(n))
	case n == 0:
		return ""
	default:
		return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix(d)))
	}
}

// Enum returns the enum value of a word, and whether there is one. It is the
// reverse of Word: "" is the unspecified value.
func Enum[E interface {
	~int32
	protoreflect.Enum
}](text string) (E, bool) {
	d := E(0).Descriptor()
	if text == "" {
		return 0, true
	}
	v := d.Values().ByName(protoreflect.Name(prefix(d) + strings.ToUpper(text)))
	if v == nil || word(d, v.Number()) != text {
		return 0, false
	}
	return E(v.Number()), true
}

// Words returns every word of an enum, in the order of its numbers, without "".
func Words[E interface {
	~int32
	protoreflect.Enum
}]() []string {
	values := E(0).Descriptor().Values()
	var words []string
	for i := range values.Len() {
		if v := values.Get(i); v.Number() != 0 {
			words = append(words, word(E(0).Descriptor(), v.Number()))
		}
	}
	return words
}

// prefix is what all value names of an enum begin with, "JOB_STATE_"; each enum
// of the API has a zero value "<PREFIX>UNSPECIFIED".
func prefix(d protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(d.Values().ByNumber(0).Name()), "UNSPECIFIED")
}
