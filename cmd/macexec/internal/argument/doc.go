// Package argument turns the -a settings of the command line into the JSON text
// of a call's arguments, with each value's type taken from the tool's schema.
//
// It judges nothing: a value that does not fit its type is sent as the string
// that was typed, so that the daemon's schema verdict speaks. It refuses only what
// must never leave the command line: a secret that was typed in plain sight, and a
// setting that says nothing. It sends nothing itself; uploads are handed in.
package argument
