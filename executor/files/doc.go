// Package files holds the only hands that touch projects and file bytes: it
// opens files below a project's root, takes sealed copies of them for a tool to
// read, says what bytes are by their magic numbers, keeps what a tool made, keeps
// uploaded blobs, and publishes.
//
// Publishing is the one way a project changes. A [Step] is one verb of a stored
// plan. [Place] brings the artifact to a hidden name beside its destination and
// says which device and inode it is; the caller stores that; [Carry] then makes
// the change by rename, and [Undo] takes a placed file back when the plan stops.
// Each of them looks at what is there before it does anything, does one thing,
// and looks again. So after a crash at any point the same call finishes the work
// and never does it twice.
//
// Names are byte strings and are never normalised. A file is known by its device
// and inode, never by comparing paths.
//
// No job, process or policy is known here: the engine decides what to publish,
// this package only proves that it happened.
package files
