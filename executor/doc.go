// Package executor runs commands: a Command goes in, an Outcome comes out, and
// what is not known is said to be unknown.
//
// The daemon's side of an attempt lives here: its folder and lock, the start of
// its keeper, watching and stopping it, what may be concluded when the keeper is
// gone, its log and its progress, and probes. The keeper's side is in the folder
// keeper; the hands on projects are in files; which executables exist is known to
// programs. Nothing here may know what a job is or why a command runs.
package executor
