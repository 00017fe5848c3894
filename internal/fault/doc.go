// Package fault lets a test stop macexec, or make a system call fail, at a named
// point between the acceptance of a call and its end. It is there only in a build
// with the tag "faults": in any other one its functions are empty and are compiled
// to nothing, names and all, which a test of internal/endtoend proves.
//
// The daemon and its keepers look for their orders in the folder that the variable
// MACEXEC_FAULTS names. A point is armed by a file of its name there:
//
//	hold      whoever comes to the point stays there until the test says go
//	EIO, …    the system call at the point fails with that error (EIO, ENOSPC, EOPNOTSUPP)
//
// A point is met once: who meets it takes the file away, so that the same point is
// free afterwards, for other processes too. Its pid is then in the file NAME.met. A
// byte in the pipe "met" tells the test of that, and each byte in the pipe "go" lets
// one who is held go on. What happens meanwhile, the death of the daemon say, is the
// test's own deed: the processes only stand still at the place where it is to happen.
//
// A file "clock" there says by how many seconds the wall clock is ahead of the host's.
// Whoever asks for the time that a record tells, or that a deadline is held against,
// asks Now for it.
package fault
