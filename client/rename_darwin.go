package client

import "golang.org/x/sys/unix"

func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }
