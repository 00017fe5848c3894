// Package programs finds the executables that tools use, and says which ones they
// are: real path, digest, version, features.
//
// Only the folders that were configured are looked in, in their order: never the
// working folder, never PATH. What is known of a program is kept by the identity of
// its file (device, inode, size and times), so that a program that was replaced is
// looked at anew and one that was not costs a stat.
//
// Nothing is started here: the caller gives the function that runs a program, and
// with it the limits.
package programs
