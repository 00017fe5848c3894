//go:build !race

package engine

// raceBuilt: the daemon is built with the race detector too.
const raceBuilt = false
