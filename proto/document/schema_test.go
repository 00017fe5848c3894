package document_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// documents says which message is which document of schemas/.
func documents() map[string]proto.Message {
	return map[string]proto.Message{
		"job":              &macexecv1.Job{},
		"event":            &macexecv1.Event{},
		"error":            &macexecv1.Error{},
		"tool":             &macexecv1.ToolInfo{},
		"check":            &macexecv1.Check{},
		"journal_entry":    &macexecv1.Entry{},
		"key":              &macexecv1.KeyRecord{},
		"run_cancellation": &macexecv1.CancelRunResponse{},
		"usage_row":        &macexecv1.UsageRow{},
		"log":              &macexecv1.LogChunk{},
		"project":          &macexecv1.Project{},
		"file":             &macexecv1.FileInfo{},
		"host":             &macexecv1.HostInfo{},
		"whoami":           &macexecv1.Identity{},
		"verify":           &macexecv1.JournalReport{},
		"configuration":    &macexecv1.Config{},
	}
}

// TestSchemas: a document in which every field is set, with every word of every
// enum in turn, is valid against its closed schema, so that neither side can have
// a field or a word that the other lacks. The other direction, that the schema
// names no property the message lacks, is checked by name.
func TestSchemas(t *testing.T) {
	t.Parallel()
	for name, m := range documents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := compile(t, name)
			for turn := range 32 {
				full := m.ProtoReflect().New()
				fill(full, turn)
				for _, doc := range variants(full.Interface()) {
					validate(t, schema, doc)
				}
			}
			sameNames(t, schema, m.ProtoReflect().Descriptor(), map[protoreflect.FullName]bool{})
		})
	}
}

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := c.Compile(filepath.Join("..", "..", "schemas", name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validate(t *testing.T, schema *jsonschema.Schema, m proto.Message) {
	t.Helper()
	doc, err := document.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Fatalf("%s\n%v", doc, err)
	}
}

// variants are the forms of a message in which some fields exclude others.
func variants(m proto.Message) []proto.Message {
	e, ok := m.(*macexecv1.Event)
	if !ok {
		return []proto.Message{m}
	}
	return []proto.Message{
		&macexecv1.Event{Snapshot: true, Job: e.GetJob()},
		&macexecv1.Event{Cursor: 7, Entry: e.GetEntry(), Job: e.GetJob()},
		&macexecv1.Event{Cursor: 7, Entry: e.GetEntry()},
		&macexecv1.Event{Progress: e.GetProgress()},
	}
}

// fill sets every field. turn chooses among the words of enums.
func fill(m protoreflect.Message, turn int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), scalar(f, f.MapValue(), turn))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), turn)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, f, turn))
		case f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp":
			m.Set(f, protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: 1_793_534_400, Nanos: int32(turn)}).ProtoReflect()))
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), turn)
		default:
			m.Set(f, scalar(f, f, turn))
		}
	}
}

func scalar(outer, f protoreflect.FieldDescriptor, turn int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		if outer.FullName() == "macexec.v1.StopRequest.end" {
			return protoreflect.ValueOfEnum(macexecv1.EndReason_END_REASON_RUN_CANCELLED.Number())
		}
		return protoreflect.ValueOfEnum(values.Get(1 + turn%(values.Len()-1)).Number())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(1 + turn))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1 << 60)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1<<63 + 1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(99.5)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(`{"n":1.0}`))
	default:
		return protoreflect.ValueOfString(text(outer, turn))
	}
}

// text is a string that the field may hold.
func text(f protoreflect.FieldDescriptor, turn int) string {
	kinds := []string{
		"job.submitted", "job.replayed", "job.changed", "call.conflict", "call.rejected", "key.fenced", "run.closed",
		"file.stored", "project.changed", "host.changed", "store.adopted", "store.confirmed",
	}
	name := string(f.Name())
	switch {
	case f.FullName() == "macexec.v1.Entry.kind":
		return kinds[turn%len(kinds)]
	case f.FullName() == "macexec.v1.ToolInfo.purposes":
		words := document.Words[macexecv1.Purpose]()
		return words[turn%len(words)]
	case f.FullName() == "macexec.v1.Identity.roles":
		return []string{"viewer", "caller", "approver", "operator"}[turn%4]
	case f.FullName() == "macexec.v1.Error.code":
		return "JOB_NOT_FOUND"
	case strings.HasSuffix(name, "sha256"), strings.HasSuffix(name, "digest"), name == "prev", name == "hash",
		f.Parent().FullName() == "macexec.v1.Binding" && f.IsMap():
		return strings.Repeat("0123abcd", 8)
	default:
		return "text"
	}
}

// sameNames fails for a property that the schema has and the message has not.
func sameNames(t *testing.T, schema *jsonschema.Schema, d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) {
	t.Helper()
	for schema.Ref != nil {
		schema = schema.Ref
	}
	if seen[d.FullName()] {
		return
	}
	seen[d.FullName()] = true
	for name, property := range schema.Properties {
		f := d.Fields().ByName(protoreflect.Name(name))
		if f == nil {
			t.Errorf("the schema of %s has the property %q; the message has no such field", d.FullName(), name)
			continue
		}
		switch {
		case f.IsMap() || f.Message() == nil || f.Message().FullName() == "google.protobuf.Timestamp":
		case f.IsList():
			sameNames(t, property.Items2020, f.Message(), seen)
		default:
			sameNames(t, property, f.Message(), seen)
		}
	}
}
