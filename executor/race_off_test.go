//go:build !race

package executor_test

// raceDetector: the launcher of these tests needs address space without bounds.
const raceDetector = false
