// Package demo shows macexec's main job on real files, from nothing, in seconds:
// it starts a daemon of its own in a temporary folder and gives it calls through
// the same command line that everybody uses.
//
// Each step says what it proves and checks that it is so. It takes nothing from
// inside the daemon: it starts commands and reads the documents that they print.
package demo
