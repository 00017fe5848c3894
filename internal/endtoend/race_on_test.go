//go:build race

package endtoend

// raceBuilt: the daemon is built with the race detector too.
const raceBuilt = true
