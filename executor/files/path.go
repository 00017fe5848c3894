package files

import (
	"fmt"
	"path"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

const (
	// Reserved begins every name that macexec makes inside a project. No call may
	// name such a thing.
	Reserved = ".macexec-"

	maxName = 255 // bytes; the limit of APFS (in UTF-8), ext4, XFS and most others
	maxPath = 4096
)

// Clean checks a path that a call named inside a project and returns it without
// "." parts and doubled slashes. It never looks at the disk and never changes the
// bytes of a name.
func Clean(p string) (string, error) {
	switch {
	case p == "":
		return "", fmt.Errorf("%w: it is empty", ErrPath)
	case len(p) > maxPath:
		return "", fmt.Errorf("%w: %d bytes, at most %d", ErrNameTooLong, len(p), maxPath)
	case strings.IndexByte(p, 0) >= 0:
		return "", fmt.Errorf("%w: %q has a NUL byte", ErrPath, p)
	case p[0] == '/':
		return "", fmt.Errorf("%w: %q is absolute; paths are inside a project", ErrPath, p)
	case p[len(p)-1] == '/':
		return "", fmt.Errorf("%w: %q names a folder", ErrPath, p)
	}
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case name == "..":
			return "", fmt.Errorf("%w: %q has a \"..\"", ErrPath, p)
		case len(name) > maxName:
			return "", fmt.Errorf("%w: %q has %d bytes, at most %d", ErrNameTooLong, name, len(name), maxName)
		case reserved(name):
			return "", fmt.Errorf("%w: names that begin with %q belong to macexec", ErrPath, Reserved)
		}
	}
	if p = path.Clean(p); p == "." {
		return "", fmt.Errorf("%w: it names the project itself", ErrPath)
	}
	return p, nil
}

// reserved says whether some file system could take name for one of macexec's own:
// HFS+ and APFS ignore case, and HFS+ ignores characters that cannot be seen.
func reserved(name string) bool {
	if len(name) < len(Reserved) {
		return false
	}
	seen := strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name)
	return strings.HasPrefix(fold(seen), Reserved)
}

// fold is the name as a file system sees it that ignores case and normalisation.
// Two names with different folds are different files everywhere.
func fold(name string) string {
	return norm.NFC.String(cases.Fold().String(norm.NFC.String(name)))
}

// plainName checks the name of a file that is not inside a project.
func plainName(name string) error {
	if strings.IndexByte(name, '/') >= 0 || name == "." {
		return fmt.Errorf("%w: %q is not a plain name", ErrPath, name)
	}
	_, err := Clean(name)
	return err
}
