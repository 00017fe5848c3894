//go:build race

package engine

// raceBuilt: these tests are built with the race detector.
const raceBuilt = true
