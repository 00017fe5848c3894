package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// put puts one thing into a folder: "file NAME BYTES", "program NAME", "files N BYTES",
// "folder NAME", "link NAME TARGET", "hard NAME OTHER", "pipe NAME". A name may have
// \n, \x.. and \u.... in it.
func (t *tool) put(dir, what string) error {
	words := strings.Fields(what)
	if len(words) < 2 {
		return errors.New("a verb and a name are wanted")
	}
	name, err := strconv.Unquote(`"` + words[1] + `"`)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	content := func(words []string) ([]byte, error) {
		n, err := strconv.Atoi(words[0])
		return []byte(strings.Repeat(t.name[:1], n)), err
	}
	switch words[0] {
	case "file":
		text, err := content(words[2:])
		if err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	case "program":
		return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700) //nolint:gosec // it is to be executable
	case "files":
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		text, err := content(words[2:])
		for i := 0; err == nil && i < n; i++ {
			path := filepath.Join(dir, fmt.Sprintf("%02d", i/100), fmt.Sprintf("%05d.txt", i))
			if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
				err = os.WriteFile(path, append(text, strconv.Itoa(i)...), 0o600)
			}
		}
		return err
	case "folder":
		return os.MkdirAll(path, 0o700)
	case "link":
		return os.Symlink(words[2], path)
	case "hard":
		return os.Link(filepath.Join(dir, words[2]), path)
	case "pipe":
		return syscall.Mkfifo(path, 0o600)
	default:
		return errors.New("no such thing")
	}
}

// listTree writes the path of each file that came in, and its content if that is text.
func (t *tool) listTree() error {
	top := os.DirFS(os.Getenv("TREE"))
	var list strings.Builder
	err := fs.WalkDir(top, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(top, path)
		if !utf8.Valid(content) {
			content = []byte("is no text")
		}
		fmt.Fprintf(&list, "%s %s\n", path, content)
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(os.Getenv("OUT"), []byte(list.String()), 0o600)
}
