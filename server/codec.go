package server

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// codec writes messages as gRPC's own does, but for two things. Protobuf refuses a
// message for one bad byte in a file's name or a tool's words, and a stream with it
// (B60); such a message is repaired, with U+FFFD for what is not UTF-8, and written
// again. All others are looked through once only, by protobuf itself. And gRPC takes a
// megabyte for every message of more than 32 KiB: fifty readers of a log, whose pieces
// are twice that, would hold hundreds (B62). Here they get what they need.
type codec struct {
	encoding.CodecV2

	pool mem.BufferPool
}

// pieceSize is what a piece of a log or a file needs as a message, with room to spare.
const pieceSize = 72 << 10

func newCodec() codec {
	return codec{encoding.GetCodecV2(proto.Name), mem.NewTieredBufferPool(4<<10, 16<<10, 32<<10, pieceSize, 4*pieceSize, 1<<20, 4<<20)}
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(protobuf.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out, err := c.write(message)
	if err == nil {
		return out, nil
	}
	repair(message.ProtoReflect())
	return c.write(message)
}

func (c codec) write(m protobuf.Message) (mem.BufferSlice, error) {
	size := protobuf.Size(m)
	options := protobuf.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		out, err := options.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(out)}, err
	}
	buf := c.pool.Get(size)
	if _, err := options.MarshalAppend((*buf)[:0], m); err != nil {
		c.pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, c.pool)}, nil
}
