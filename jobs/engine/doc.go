// Package engine is the one place where order lives: what happens to a call, and
// when. Read it in this order:
//
//	submit.go    syntax → known key? → schema → business → policy → key + job in one write
//	approve.go   a person's yes or no, and the binding it is about
//	schedule.go  which queued job starts next, in which slot
//	run.go       one attempt: stage → intent → keeper → tool → verify → publish → end
//	finish.go    from an attempt's outcome to a state with evidence
//	recover.go   what a new daemon concludes from what the old one left
//	watch.go     events, progress and logs for callers
//	files.go     uploads, downloads, artifacts, projects
//
// It starts no process and touches no file itself (package executor does), opens
// no store (it is given one), and knows no wire protocol (faces call it).
package engine
