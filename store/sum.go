package store

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/crc32"
)

// A record ends with a checksum of what lies before it, as one more field of its JSON: a
// bit that flips inside a text or a number leaves good JSON, and would be believed. As a
// field an older macexec reads past it, and what that has written has none.
const (
	sumStart = `,"crc32c":"`
	sumEnd   = `"}`
	sumSize  = len(sumStart) + 8 + len(sumEnd)
)

func sumOf(body []byte) [crc32.Size]byte {
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	return [crc32.Size]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
}

// withSum adds the checksum to the JSON of a record, which is an object with a field.
func withSum(record []byte) []byte {
	body := record[:len(record)-1]
	sum := sumOf(body)
	body = append(body, sumStart...)
	body = hex.AppendEncode(body, sum[:])
	return append(body, sumEnd...)
}

// splitSum takes the checksum off a record; it is "" if the record has none.
func splitSum(record []byte) (body []byte, sum string) {
	at := len(record) - sumSize
	if at <= 0 || string(record[at:at+len(sumStart)]) != sumStart || string(record[len(record)-len(sumEnd):]) != sumEnd {
		return record, ""
	}
	return record[:at], string(record[at+len(sumStart) : len(record)-len(sumEnd)])
}

// checkSum holds a record against its checksum, if it has one.
func checkSum(record []byte) error {
	body, said := splitSum(record)
	if said == "" {
		return nil
	}
	if sum := sumOf(body); hex.EncodeToString(sum[:]) != said {
		return fmt.Errorf("its checksum is %x and it says %s", sum, said)
	}
	return nil
}

// withoutSum is what a record says beside its checksum.
func withoutSum(record []byte) []byte {
	body, sum := splitSum(record)
	if sum == "" {
		return record
	}
	return append(bytes.Clone(body), '}')
}
