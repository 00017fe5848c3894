//go:build !race

package engine

// raceBuilt: these tests are built without the race detector.
const raceBuilt = false
