// Package engine is the one place where order lives: what happens to a call, and
// when. Read it in this order:
//
//	submit.go    a key's turn → syntax → known key? → schema → business → policy → key + job in one write
//	approve.go   a person's yes or no, and the binding it is about
//	turn.go      what a job needs to start: a slot, and locks
//	schedule.go  which queued job starts next: slots.go, share.go, locks.go
//	dispatch.go  how it is begun, and its slot given back
//	run.go       one attempt: stage → intent → keeper → tool → verify → publish → end
//	stage.go     the inputs as the tool will read them, compared with what was approved
//	command.go   what a manifest wants started, and the programs for it
//	finish.go    from an attempt's outcome to a state with evidence
//	verify.go    exit code 0 alone proves nothing: outputs, digests, result
//	publish.go   the only changes to projects: place, store the plan, carry it out
//	probe.go     what a tool's own probe proves of an unknown job
//	left.go      a tool that outlives its keeper is watched
//	recover.go   what a new daemon concludes from what the old one left
//	clock.go     which deadline has passed: clocks that are set, and who was suspended
//	room.go      what goes on while the disk of the store is full
//	control.go   cancel and resolve
//	fence.go     a key under which nothing will ever start
//	runs.go      a cancelled run, and all that came from it
//	mode.go      open, paused, draining
//	observe.go   who is told of all this
//	query.go, watch.go, wait.go, progress.go, files.go   what callers ask for
//
// It starts no process and changes no file itself (package executor does), opens
// no store (it is given one), and knows no wire protocol (faces call it).
package engine
