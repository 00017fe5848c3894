// Package house holds the tests that hold the house: who may import whom, how
// packages are documented, where a job's state may change, and that what is
// written in docs/ and in generated code is what the code says.
//
// Only tests live here, each about the repository as a whole. A test about one
// room lives in that room.
package house
