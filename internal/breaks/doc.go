// Package breaks shows that the tests would notice: it removes one guard of macexec at a
// time from a copy of the tree and runs the test that is to turn red. `make breaks` does
// that; an ordinary test run only holds that every guard is still where the table says.
// docs/reliability.md has the list, with what was seen.
package breaks
