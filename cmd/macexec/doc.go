// Command macexec is the daemon and the command line that talks to it.
//
// What is here is wiring: main turns arguments into one call of run and its answer
// into the exit code; serve puts the rooms together; every other command asks the
// daemon through package client and shows what it says. How values are typed is
// told in internal/argument, how things are drawn in internal/show.
//
// Results go to stdout, everything else to stderr. The exit code is decided in
// exit.go and nowhere else.
package main
