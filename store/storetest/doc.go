// Package storetest holds what every implementation of jobs.Store must do, as one
// suite of tests, and the calls that the suite and other tests fill a store with.
// It is for tests only: the binary never imports it. What is special to one
// implementation (files, locks, crashes) is tested beside that one.
package storetest
