// Command bench measures a real daemon against what the machine itself can do, and
// prints one table: each figure, the bare figure it stands beside, and the floor it
// is held to. All of a table is from one run, since ratios mean something only then.
// It fails when something does not work and never because something is slow; what
// proves that macexec is right lives in tests, not here.
package main
