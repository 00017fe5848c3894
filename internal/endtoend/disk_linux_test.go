package endtoend

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// disk is a file system that knows, of everything below its root, what must be there
// after a power cut and what may be. It promises no more than POSIX does: the bytes of
// a file are safe once the file was synced, a name once its folder was; neither brings
// the other along. A rename between two folders is one change of both.
type disk struct {
	root  string
	top   *inode
	next  uint64
	syncs map[int]promise // by process: an fsync under way
	turns int             // how often it changed
}

// inode is a file or a folder.
type inode struct {
	id    uint64
	dir   bool
	mode  fs.FileMode // as it is
	safe  fs.FileMode // as it is on the disk
	first uint64      // the number of the first of pending

	// A file: what is on the disk, what was written since, and the two together.
	onDisk  content
	pending []write
	data    content

	// A folder.
	names    map[string]*inode
	changes  []*change
	safeName map[string]*inode
}

// change is one change of a folder's names. Nil is a name that goes.
type change struct {
	names map[string]*inode
	// with is the other half of a rename between two folders.
	with *change
	in   *inode
}

// promise is what an fsync will hold for.
type promise struct {
	of    *inode
	until uint64
}

func (d *disk) make(dir bool, mode fs.FileMode) *inode {
	d.next++
	n := &inode{id: d.next, dir: dir, mode: mode, safe: mode}
	if dir {
		n.names, n.safeName = map[string]*inode{}, map[string]*inode{}
	}
	return n
}

// newDisk is the disk on which everything below root is safe as it is now.
func newDisk(root string) (*disk, error) {
	d := &disk{root: root, syncs: map[int]promise{}}
	d.top = d.make(true, 0o700)
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		info, err := e.Info()
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		n := d.make(e.IsDir(), info.Mode().Perm())
		if !n.dir {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			n.data = write{bytes: data}.on(content{})
			n.onDisk = n.data
		}
		parent := d.at(filepath.Dir(p))
		parent.names[e.Name()], parent.safeName[e.Name()] = n, n
		return nil
	})
	return d, err
}

// clone is a disk of its own. Everything on this one is safe.
func (d *disk) clone() *disk {
	c := &disk{root: d.root, next: d.next, syncs: map[int]promise{}}
	c.top = d.top.clone()
	return c
}

func (n *inode) clone() *inode {
	c := *n
	if n.dir {
		c.names, c.safeName = map[string]*inode{}, map[string]*inode{}
		for name, in := range n.names {
			c.names[name] = in.clone()
			c.safeName[name] = c.names[name]
		}
	}
	return &c
}

// at is what a path leads to; nil if there is nothing, or if it lies outside.
func (d *disk) at(p string) *inode {
	if p == d.root {
		return d.top
	}
	rel, ok := strings.CutPrefix(p, d.root+"/")
	if !ok {
		return nil
	}
	n := d.top
	for name := range strings.SplitSeq(rel, "/") {
		if n == nil || !n.dir {
			return nil
		}
		n = n.names[name]
	}
	return n
}

// set is a change of one name.
func (d *disk) set(p string, n *inode) error {
	return d.change(path.Dir(p), map[string]*inode{path.Base(p): n})
}

func (d *disk) change(dir string, names map[string]*inode) error {
	in := d.at(dir)
	if in == nil {
		return fmt.Errorf("%s is not there", dir)
	}
	d.turns++
	in.add(&change{names: names})
	return nil
}

func (n *inode) add(c *change) {
	c.in = n
	n.changes = append(n.changes, c)
	apply(n.names, c)
}

func apply(names map[string]*inode, c *change) {
	for name, n := range c.names {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

func (d *disk) write(n *inode, w write) {
	d.turns++
	n.pending = append(n.pending, w)
	n.data = w.on(n.data)
}

// begin and end are an fsync: it holds for what was before its begin.
func (d *disk) begin(pid int, n *inode) {
	d.syncs[pid] = promise{n, n.first + uint64(len(n.pending)+len(n.changes))}
}

func (d *disk) end(pid int) {
	p, ok := d.syncs[pid]
	if !ok {
		return
	}
	delete(d.syncs, pid)
	d.turns++
	p.of.keep(p.until)
	p.of.safe = p.of.mode
}

// keep brings everything before a number to the disk.
func (n *inode) keep(until uint64) {
	for n.first < until && len(n.pending) > 0 {
		n.onDisk = n.pending[0].on(n.onDisk)
		n.pending = n.pending[1:]
		n.first++
	}
	for n.first < until && len(n.changes) > 0 {
		c := n.changes[0]
		apply(n.safeName, c)
		n.changes = n.changes[1:]
		n.first++
		if other := c.with; other != nil {
			if i := slices.Index(other.in.changes, other); i >= 0 {
				other.in.keep(other.in.first + uint64(i) + 1)
			}
		}
	}
}

// do does to the disk what a call did to the real one.
func (d *disk) do(c sysCall) error {
	if c.phase == gone {
		return nil
	}
	switch c.name {
	case "openat":
		return d.open(c, c.path(0, 1), c.args[2], arg(c.args, 3))
	case "open":
		return d.open(c, c.path(-1, 0), c.args[1], arg(c.args, 2))
	case "creat":
		return d.open(c, c.path(-1, 0), "O_CREAT|O_TRUNC", arg(c.args, 1))
	case "write", "pwrite64":
		if n := d.at(opened(c.args[0])); n != nil {
			at := n.data.size // nobody here writes in the middle without saying where
			if c.name == "pwrite64" {
				at = c.number(3)
			}
			d.write(n, write{at: at, bytes: []byte(c.text(1))[:c.count()]})
		}
	case "ftruncate":
		if n := d.at(opened(c.args[0])); n != nil {
			d.write(n, write{at: c.number(1), cut: true})
		}
	case "fallocate":
		n := d.at(opened(c.args[0]))
		if n == nil || c.args[1] != "0" {
			return nil
		}
		if size := c.number(2) + c.number(3); size > n.data.size {
			d.write(n, write{at: size, cut: true})
		}
	case "copy_file_range", "sendfile", "splice":
		return d.copied(c)
	case "ioctl":
		if strings.HasPrefix(c.args[1], "FICLONE") {
			return errors.New("the file system of this folder shares blocks, which is not modelled")
		}
	case "rename", "renameat", "renameat2", "link", "linkat":
		return d.moved(c)
	case "unlink", "rmdir":
		return d.removed(c.path(-1, 0))
	case "unlinkat":
		return d.removed(c.path(0, 1))
	case "mkdir":
		return d.madeFolder(c.path(-1, 0), c.number(1))
	case "mkdirat":
		return d.madeFolder(c.path(0, 1), c.number(2))
	case "chmod":
		d.chmod(c.path(-1, 0), c.number(1))
	case "fchmod":
		d.chmod(opened(c.args[0]), c.number(1))
	case "fchmodat", "fchmodat2":
		d.chmod(c.path(0, 1), c.number(2))
	case "fsync":
		if n := d.at(opened(c.args[0])); n != nil && c.phase != ended {
			d.begin(c.pid, n)
		}
		if c.phase != begun {
			d.end(c.pid)
		}
	case "execve", "nothing", "sync_file_range": // which promises nothing
	default:
		if strings.Contains(c.String(), d.root) {
			return errors.New("no such call is known")
		}
	}
	return nil
}

func arg(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return "0"
}

func (d *disk) open(c sysCall, p, flags, mode string) error {
	if opened(c.result) == "" || !strings.HasPrefix(p, d.root+"/") {
		return nil
	}
	n := d.at(p)
	switch {
	case n == nil && strings.Contains(flags, "O_CREAT"):
		perm := sysCall{args: []string{mode}}.number(0)
		return d.set(p, d.make(false, fs.FileMode(perm)&0o777&^0o022)) // the umask of who runs this matters to no reader
	case n != nil && strings.Contains(flags, "O_TRUNC") && n.data.size > 0:
		d.write(n, write{cut: true})
	}
	return nil
}

// copied is a copy inside the kernel, of a whole file from its beginning.
func (d *disk) copied(c sysCall) error {
	from, to := 0, 2
	if c.name == "sendfile" {
		from, to = 1, 0
	}
	n := d.at(opened(c.args[to]))
	if n == nil || c.count() == 0 {
		return nil
	}
	at := n.data.size
	var all []byte
	if src := d.at(opened(c.args[from])); src != nil {
		all = src.data.bytes()
	} else {
		var err error
		if all, err = os.ReadFile(opened(c.args[from])); err != nil {
			return err
		}
	}
	d.write(n, write{at: at, bytes: all[at : at+c.count()]})
	return nil
}

func (d *disk) moved(c sysCall) error {
	var from, to, flags string
	if c.name == "rename" || c.name == "link" {
		from, to = c.path(-1, 0), c.path(-1, 1)
	} else {
		from, to, flags = c.path(0, 1), c.path(2, 3), arg(c.args, 4)
	}
	n := d.at(from)
	switch comes, goes := strings.HasPrefix(to, d.root+"/"), strings.HasPrefix(from, d.root+"/"); {
	case !comes && !goes:
		return nil
	case !goes: // the keeper's program, which every start makes anew
		return d.set(to, d.make(false, 0o700))
	case n == nil || !comes:
		return fmt.Errorf("%s to %s: one of them is not known", from, to)
	}
	if strings.HasPrefix(c.name, "link") {
		return d.set(to, n)
	}
	if strings.Contains(flags, "EXCHANGE") {
		if path.Dir(from) != path.Dir(to) {
			return errors.New("an exchange between two folders is not modelled")
		}
		return d.change(path.Dir(from), map[string]*inode{path.Base(from): d.at(to), path.Base(to): n})
	}
	if path.Dir(from) == path.Dir(to) {
		return d.change(path.Dir(from), map[string]*inode{path.Base(from): nil, path.Base(to): n})
	}
	d.turns++
	comes, goes := &change{names: map[string]*inode{path.Base(to): n}}, &change{names: map[string]*inode{path.Base(from): nil}}
	comes.with, goes.with = goes, comes
	d.at(path.Dir(to)).add(comes)
	d.at(path.Dir(from)).add(goes)
	return nil
}

func (d *disk) removed(p string) error {
	if d.at(p) == nil {
		return nil // outside, or a socket
	}
	return d.set(p, nil)
}

func (d *disk) madeFolder(p string, mode int64) error {
	if !strings.HasPrefix(p, d.root+"/") {
		return nil
	}
	return d.set(p, d.make(true, fs.FileMode(mode)&0o777&^0o022))
}

func (d *disk) chmod(p string, mode int64) {
	if n := d.at(p); n != nil {
		d.turns++
		n.mode = fs.FileMode(mode) & 0o777
	}
}

// loss says what a power cut takes of what was not synced.
type loss struct {
	name  string
	names amount
	bytes amount
	seed  uint64 // of what some is
}

type amount byte

const (
	nothing amount = iota // is lost
	everything
	some
	contents // are lost, and the length is not: a file has zeroes where its bytes were to be
)

// losses are the combinations that are looked at. The first is no power cut but the
// end of all processes.
func losses() []loss {
	return []loss{
		{name: "nothing is lost"},
		{name: "bytes and names are lost", names: everything, bytes: everything},
		{name: "bytes are lost, names are not", bytes: everything},
		{name: "names are lost, bytes are not", names: everything},
		{name: "bytes are lost, lengths and names are not", bytes: contents},
		{name: "some names and some bytes are lost", names: some, bytes: some, seed: 1},
		{name: "other names and other bytes are lost", names: some, bytes: some, seed: 2},
	}
}

// chance is a number that belongs to this loss of this inode.
func (l loss) chance(n *inode, i uint64) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, l.seed), n.id), i))
	return h.Sum64() >> 7
}

// left are the names of a folder that are left after a loss.
func (l loss) left(n *inode) map[string]*inode {
	switch l.names {
	case everything:
		return n.safeName
	case some:
		names := maps.Clone(n.safeName)
		for i := range l.kept(n) {
			apply(names, n.changes[i])
		}
		return names
	default:
		return n.names
	}
}

// kept says how many of the changes of a folder are on the disk though nobody asked
// for it. A name goes only if the other half of its rename is there.
func (l loss) kept(n *inode) int {
	k := int(l.chance(n, n.first) % uint64(len(n.changes)+1))
	for i, c := range n.changes[:k] {
		if c.with == nil {
			continue
		}
		if j := slices.Index(c.with.in.changes, c.with); j >= 0 && j >= int(l.chance(c.with.in, c.with.in.first)%uint64(len(c.with.in.changes)+1)) {
			return i
		}
	}
	return k
}

// has is what a file has after a loss.
func (l loss) has(n *inode) content {
	switch {
	case len(n.pending) == 0 || l.bytes == nothing:
		return n.data
	case l.bytes == everything:
		return n.onDisk
	}
	data := n.onDisk
	for i, w := range n.pending {
		switch {
		case l.bytes == contents:
			if end := w.at + int64(len(w.bytes)); w.cut || end > data.size {
				data = write{at: end, cut: true}.on(data)
			}
		case l.chance(n, n.first+uint64(i))%2 == 0:
			data = w.on(data)
		}
	}
	return data
}

func (l loss) modeOf(n *inode) fs.FileMode {
	if l.bytes == nothing {
		return n.mode
	}
	return n.safe
}

// under is what a path leads to after a loss.
func (d *disk) under(l loss, rel string) *inode {
	n := d.top
	for name := range strings.SplitSeq(rel, "/") {
		if n == nil || !n.dir {
			return nil
		}
		n = l.left(n)[name]
	}
	return n
}

// sum is a digest of everything that a loss leaves at some paths.
func (d *disk) sum(l loss, paths ...string) [32]byte {
	h := sha256.New()
	for _, rel := range paths {
		d.each(l, rel, func(p string, n *inode) {
			fmt.Fprintf(h, "%s %v %o %d\n", p, n.dir, l.modeOf(n), n.id)
			if !n.dir {
				l.has(n).digest(h)
			}
		})
	}
	return [32]byte(h.Sum(nil))
}

func (d *disk) each(l loss, rel string, do func(string, *inode)) {
	n := d.under(l, rel)
	if n == nil {
		return
	}
	do(rel, n)
	if n.dir {
		names := l.left(n)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			d.each(l, path.Join(rel, name), do)
		}
	}
}

// build makes a real folder of what a loss leaves at some paths. It says where each
// inode is.
func (d *disk) build(l loss, root string, paths ...string) (map[*inode]string, error) {
	made := map[*inode]string{}
	var failed error
	for _, rel := range paths {
		if err := os.MkdirAll(filepath.Join(root, path.Dir(rel)), 0o700); err != nil {
			return nil, err
		}
		d.each(l, rel, func(p string, n *inode) {
			file := filepath.Join(root, p)
			first, linked := made[n]
			made[n] = file
			var err error
			switch {
			case n.dir:
				if err = os.MkdirAll(file, 0o700); err == nil {
					err = os.Chmod(file, l.modeOf(n)|0o700)
				}
			case linked:
				err = os.Link(first, file)
			default:
				if err = l.has(n).store(file); err == nil {
					err = os.Chmod(file, l.modeOf(n))
				}
			}
			failed = errors.Join(failed, err)
		})
	}
	return made, failed
}

// difference holds the disk against the real folder: the two must be alike when
// nothing is lost, or the disk is no picture of the real one.
func (d *disk) difference(paths ...string) (list []string) {
	for _, rel := range paths {
		there := map[string]bool{}
		_ = filepath.WalkDir(filepath.Join(d.root, rel), func(p string, e fs.DirEntry, err error) error {
			if err == nil && (e.IsDir() || e.Type().IsRegular()) {
				there[p] = true
			}
			return nil
		})
		d.each(loss{}, rel, func(p string, n *inode) {
			at := filepath.Join(d.root, p)
			if !there[at] {
				list = append(list, p+" is only on the disk of the test")
			} else if data, err := os.ReadFile(at); !n.dir && (err != nil || !bytes.Equal(data, n.data.bytes())) {
				list = append(list, fmt.Sprintf("%s has %d bytes, and %d on the disk of the test (%v)", p, len(data), n.data.size, err))
			}
			delete(there, at)
		})
		for p := range there {
			list = append(list, p+" is missing on the disk of the test")
		}
	}
	return list
}
