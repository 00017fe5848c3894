//go:build faults

package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// On says that this build has fault points.
const On = true

const variable = "MACEXEC_FAULTS"

// Point is a place at which a test may stop this process.
func Point(name string) { _ = Err(name) }

// Err is a place at which a test may stop this process, or make the next system call
// fail.
func Err(name string) error {
	dir := os.Getenv(variable)
	if dir == "" {
		return nil
	}
	armed := filepath.Join(dir, name)
	orders, err := os.ReadFile(armed)
	if err != nil || os.Rename(armed, armed+".taken") != nil {
		return nil //nolint:nilerr // not armed, or somebody else was first
	}
	tell(dir, name)
	switch order := strings.TrimSpace(string(orders)); order {
	case "hold":
		hold(dir)
		return nil
	case "EIO":
		return fmt.Errorf("fault at %s: %w", name, syscall.EIO)
	case "ENOSPC":
		return fmt.Errorf("fault at %s: %w", name, syscall.ENOSPC)
	case "EOPNOTSUPP":
		return fmt.Errorf("fault at %s: %w", name, syscall.EOPNOTSUPP)
	default:
		panic("fault: no such order: " + order) // the test's own mistake
	}
}

// tell lets the test know who met the point.
func tell(dir, name string) {
	met := filepath.Join(dir, name+".met")
	if err := os.WriteFile(met+".new", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(met+".new", met); err != nil {
		panic(err)
	}
	pipe, err := os.OpenFile(filepath.Join(dir, "met"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return // nobody listens any more
	}
	_, _ = pipe.WriteString("!")
	_ = pipe.Close()
}

// hold waits for the test's word.
func hold(dir string) {
	pipe, err := os.OpenFile(filepath.Join(dir, "go"), os.O_RDWR, 0) // both ends, so that opening it waits for nobody
	if err != nil {
		panic(err)
	}
	defer pipe.Close()
	_, _ = pipe.Read(make([]byte, 1))
}

// Environment is what a child needs to know of the orders.
func Environment() []string {
	return []string{variable + "=" + os.Getenv(variable)}
}
