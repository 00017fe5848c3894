// Package show draws what a person reads: tables, a line of progress, sizes and
// times. Text that came from elsewhere goes through Line, Text or a Writer, so
// that no control character reaches a terminal.
//
// It knows nothing of jobs or of the API, and writes only where it is told to.
package show
