// Package endtoend holds the promises of the design (G1 to G15) on the whole: a
// real daemon with real keepers and tools, reached through its socket, and killed
// at bad moments. Here live tests, and in testtool the program that they let the
// daemon run. What one room can hold alone is tested in that room.
//
// The daemon is built from this tree with two more shipped manifests (see TestMain):
// an operator's own tool counts as external on a host that cannot confine it, so
// that without them no tool of the tests could read or stage there.
package endtoend
