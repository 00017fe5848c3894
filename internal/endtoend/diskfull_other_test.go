//go:build !linux

package endtoend

import "testing"

// tryDisk makes a small file system on Linux only.
func tryDisk(*testing.T, string) (dir string, ok bool) { return "", false }

func (d *daemon) fill() { d.t.Fatal("there is no small disk to be filled") }

func (d *daemon) empty() { d.t.Fatal("there is no small disk") }
