// Package jobs is the domain: what a call, a job, a state, a verdict, a piece of
// evidence and a journal entry are, which transitions exist, what each outcome
// means, and what a store must promise.
//
// What happens to a call, in order, is told in package jobs/engine. How records
// reach the disk is told in package store. This package decides nothing about
// processes, files, networks or policy, does no I/O, and imports nothing of ours.
//
// States change only through the methods in transition.go, each of which looks
// its step up in one table; there is no SetState.
package jobs
