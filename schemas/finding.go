package schemas

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Finding is one thing that is wrong with a JSON value, written so that a model
// can act on it. It never holds the value of a secret argument.
type Finding struct {
	Pointer string // RFC 6901; "" is the whole value
	Keyword string // the JSON Schema keyword, or the name of the check
	Message string // what is wrong
	Hint    string // what to send instead; may be empty
}

// KeywordInternal marks a finding that is a fault of macexec, not of the value.
const KeywordInternal = "internal"

// Pointer makes an RFC 6901 pointer of unescaped tokens.
func Pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// unescaped undoes what Pointer does to one token.
func unescaped(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// quoted shows a name in a message: quoted, and cut when it is long.
func quoted(s string) string {
	const most = 80
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strconv.Quote(s)
}

func quotedList(names []string) string {
	shown := make([]string, 0, len(names))
	for i, n := range names {
		if i == 20 {
			shown = append(shown, "…")
			break
		}
		shown = append(shown, quoted(n))
	}
	return strings.Join(shown, ", ")
}

// atLine puts a line number before a message; 0 is unknown.
func atLine(line int, message string) string {
	if line == 0 {
		return message
	}
	return "line " + strconv.Itoa(line) + ": " + message
}
