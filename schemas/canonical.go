package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// CanonicalCall is what a key belongs to: two submissions under one key are the
// same call exactly when these are the same.
type CanonicalCall struct {
	Tool      string
	Version   string // as asked; empty if none was
	Purpose   string
	Replace   bool
	Arguments any // as Parse gave it
	// Secret gives the text that stands for a secret value, an HMAC under a key that
	// is not in the store: a plain digest of a short secret could be guessed. value
	// is the canonical form of the secret. It may be nil where there are no secrets.
	Secret func(pointer, value string) string
}

// Fingerprint is the digest of a call: "v1:" and hex SHA-256 over its canonical
// form. Names are sorted by their bytes, numbers are written by exact value (1,
// 1.0 and 1e0 are equal, 9007199254740993 and …992 are not), texts are escaped in
// one way and never normalised (NFC and NFD differ). RFC 8785 is not used, since
// it rounds integers beyond 2^53.
func Fingerprint(c CanonicalCall, secretPointers map[string]bool) string {
	w := &canonicalWriter{secret: c.Secret, pointers: secretPointers}
	w.raw("macexec-call-v1\n")
	for _, field := range []string{c.Tool, c.Version, c.Purpose, strconv.FormatBool(c.Replace)} {
		w.text(field)
		w.raw("\n")
	}
	w.value(c.Arguments, "")
	sum := sha256.Sum256([]byte(w.String()))
	return "v1:" + hex.EncodeToString(sum[:])
}

type canonicalWriter struct {
	strings.Builder
	secret   func(pointer, value string) string
	pointers map[string]bool
}

func (w *canonicalWriter) raw(s string) { w.WriteString(s) }

func (w *canonicalWriter) value(v any, pointer string) {
	if w.secret != nil && w.pointers[pointer] {
		plain := &canonicalWriter{}
		plain.value(v, pointer)
		w.raw("secret(")
		w.text(w.secret(pointer, plain.String()))
		w.raw(")")
		return
	}
	switch v := v.(type) {
	case nil:
		w.raw("null")
	case bool:
		w.raw(strconv.FormatBool(v))
	case string:
		w.text(v)
	case json.Number:
		w.raw(canonicalNumber(string(v)))
	case []any:
		w.raw("[")
		for i, item := range v {
			if i > 0 {
				w.raw(",")
			}
			w.value(item, pointer+"/"+strconv.Itoa(i))
		}
		w.raw("]")
	case map[string]any:
		w.raw("{")
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				w.raw(",")
			}
			w.text(name)
			w.raw(":")
			w.value(v[name], pointer+Pointer(name))
		}
		w.raw("}")
	default:
		panic(fmt.Sprintf("schemas: a %T is not a value that Parse makes", v))
	}
}

// text writes a text in quotes. Only what would make the form ambiguous is
// escaped, each in one way.
func (w *canonicalWriter) text(s string) {
	w.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			w.WriteByte('\\')
			w.WriteByte(c)
		case '\n':
			w.WriteString(`\n`)
		default:
			w.WriteByte(c)
		}
	}
	w.WriteByte('"')
}

// canonicalNumber writes a number by its exact value as an integer without
// trailing zeros and a power of ten, and never expands the power.
func canonicalNumber(text string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(text), "e")
	exponent := new(big.Int)
	if power != "" {
		exponent.SetString(strings.TrimPrefix(power, "+"), 10)
	}
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent.Sub(exponent, big.NewInt(int64(len(fraction))))
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return "0" // also -0: the value is the same
	}
	exponent.Add(exponent, big.NewInt(int64(len(digits)-len(significant))))
	return sign + significant + "e" + exponent.String()
}
