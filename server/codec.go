package server

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// codec writes messages as gRPC's own does. Protobuf refuses a message for one bad
// byte in a file's name or a tool's words, and a stream with it (B60); such a message
// is repaired, with U+FFFD for what is not UTF-8, and written again. All others are
// looked through once only, by protobuf itself.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, err := c.CodecV2.Marshal(v)
	message, ok := v.(protobuf.Message)
	if err == nil || !ok {
		return out, err
	}
	repair(message.ProtoReflect())
	return c.CodecV2.Marshal(v)
}
