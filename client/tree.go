package client

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// DownloadFolder copies a folder of the host to path, where nothing may be. It comes
// as a tar, which lies in path.part meanwhile, as with Download: a broken download goes
// on where it was. The tar is unpacked beside it, and only when the folder has the
// digest that the host announced does it appear at path, in one step.
func (c *Client) DownloadFolder(ctx context.Context, reference, path string, options ...TransferOption) (*macexecv1.FileInfo, error) {
	info, err := c.Stat(ctx, reference)
	if err != nil {
		return nil, err
	}
	if !info.GetFolder() {
		return nil, fmt.Errorf("%s is a file, not a folder", reference)
	}
	t := transferOf(options)
	p, err := openPart(path, info)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if _, err := os.Lstat(path); err == nil {
		// An earlier run may have given the folder its name, and ended before it could
		// tidy up.
		if (p.again || t.keep) && holds(ctx, path, info) {
			return info, p.remove()
		}
		return nil, errors.Join(&fs.PathError{Op: opDownload, Path: path, Err: fs.ErrExist}, p.removeEmpty())
	}
	temp := path + partSuffix + ".folder"
	if _, err := os.Lstat(temp); err == nil && !p.again {
		return nil, errors.Join(&fs.PathError{Op: opDownload, Path: temp, Err: errors.New("it is in the way, and no download left it; move it away")}, p.removeEmpty())
	}
	if err := c.fillFolder(ctx, p, temp, t); err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp), p.removeEmpty())
	}
	if err := renameExclusive(temp, path); err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	return info, p.remove()
}

// errWrongTar: what arrived is not what the host has, so it is no use to unpack it
// again.
var errWrongTar = errors.New("it is not what the host has")

// fillFolder brings over what a part lacks and unpacks it. A part that an earlier run
// left and that turns out to be wrong is brought over anew, once; one that is right
// stays when there is no room to unpack it, say.
func (c *Client) fillFolder(ctx context.Context, p *part, temp string, t transfer) error {
	for {
		had, err := p.size()
		if err != nil {
			return err
		}
		if _, err := c.downloadRaw(ctx, p.Reference, had, p.f, t); err != nil {
			return err
		}
		digest, err := unpack(ctx, io.NewSectionReader(p.f, 0, p.Transfer), temp)
		if err == nil && digest != p.SHA256 {
			err = fmt.Errorf("%w: %s arrived with the digest %s, and it has %s", errWrongTar, p.Reference, digest, p.SHA256)
		}
		if !errors.Is(err, errWrongTar) {
			return err
		}
		if cut := p.f.Truncate(0); cut != nil || had == 0 {
			return errors.Join(err, cut)
		}
	}
}

// holds reports that a path is what the host describes: the same file, or a folder of
// the same files.
func holds(ctx context.Context, path string, info *macexecv1.FileInfo) bool {
	var digest string
	var err error
	if info.GetFolder() {
		digest, err = treeDigest(ctx, path)
	} else {
		digest, err = fileDigest(ctx, path, info.GetSize())
	}
	return err == nil && digest == info.GetSha256()
}

// treeDigest is the digest of a folder as the host gives it.
func treeDigest(ctx context.Context, dir string) (string, error) {
	if at, err := os.Lstat(dir); err != nil || !at.IsDir() {
		return "", errors.Join(err, errors.New("it is no folder"))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	var names []string
	err = fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if name != "." {
			names = append(names, name)
		}
		return errors.Join(err, context.Cause(ctx))
	})
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	tree := newTree()
	for _, name := range names {
		at, err := root.Lstat(name)
		switch {
		case err != nil:
			return "", err
		case at.IsDir():
			tree.folder(name)
		case !at.Mode().IsRegular():
			return "", errors.New("it holds more than files and folders")
		default:
			sum := sha256.New()
			f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
			if err != nil {
				return "", err
			}
			n, err := copyAt(ctx, sum, f, at.Size())
			if err := errors.Join(err, f.Close()); err != nil {
				return "", err
			}
			tree.file(name, at.Mode()&0o100 != 0, n, sum)
		}
	}
	return tree.digest(), nil
}

// tree makes the digest of a folder from what it holds, in the order of the paths.
type tree struct{ sum hash.Hash }

func newTree() tree {
	t := tree{sha256.New()}
	fmt.Fprintln(t.sum, "macexec-tree-v1")
	return t
}

func (t tree) folder(name string) { fmt.Fprintf(t.sum, "dir 0 - %s\n", name) }

func (t tree) file(name string, runs bool, size int64, sum hash.Hash) {
	word := "0644"
	if runs {
		word = "0755"
	}
	fmt.Fprintf(t.sum, "%s %d %s %s\n", word, size, hex.EncodeToString(sum.Sum(nil)), name)
}

func (t tree) digest() string { return hex.EncodeToString(t.sum.Sum(nil)) }

// unpack makes the folder dir anew from a tar, and returns the digest of what it holds.
// A tar that no host of ours sends is errWrongTar; any other error is one of this
// machine, or the end of ctx.
func unpack(ctx context.Context, tarred *io.SectionReader, dir string) (digest string, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o777); err != nil { //nolint:gosec // the umask decides, as for any folder of the caller's
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	u := unpacker{ctx: ctx, root: root, in: tar.NewReader(bufio.NewReader(tarred)), tree: newTree(), left: tarred.Size()}
	for {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			return u.tree.digest(), nil
		}
		if err != nil {
			return "", fmt.Errorf("%w: read the tar: %w", errWrongTar, err)
		}
		if err := u.take(h); err != nil {
			return "", fmt.Errorf("%q in the tar: %w", h.Name, err)
		}
	}
}

// unpacker takes what a tar of the host may hold: files and folders by plain relative
// paths, each once, in the order of their paths. Nothing is written through a link, as
// none is ever made.
type unpacker struct {
	ctx  context.Context //nolint:containedctx // it lives as long as one unpack
	root *os.Root
	in   *tar.Reader
	tree tree
	last string
	left int64 // bytes of the tar that files have not used up: a sparse entry has more than it brings
}

func (u *unpacker) take(h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	control := func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }
	switch {
	case !fs.ValidPath(name) || name == "." || path.Clean(name) != name || strings.ContainsFunc(name, control):
		return wrong("it is no plain relative path")
	case name <= u.last:
		return wrong("it does not come in order")
	}
	u.last = name
	switch h.Typeflag {
	case tar.TypeDir:
		if h.Name == name || h.Size != 0 {
			return wrong("it is no proper folder")
		}
		u.tree.folder(name)
		return misplaced(u.root.Mkdir(name, 0o777))
	case tar.TypeReg:
		if h.Name != name {
			return wrong("it is no proper file")
		}
		return u.file(name, h)
	default:
		return wrong("it is neither a file nor a folder")
	}
}

func wrong(why string) error { return fmt.Errorf("%w: %s", errWrongTar, why) }

// misplaced is an error of making an entry. Where it may be made is the tar's own word:
// in a folder that it has made before.
func misplaced(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: %w", errWrongTar, err)
	}
	return err
}

func (u *unpacker) file(name string, h *tar.Header) error {
	if u.left -= h.Size; u.left < 0 {
		return wrong("it is larger than the tar")
	}
	runs, mode := h.Mode&0o100 != 0, fs.FileMode(0o666)
	if runs {
		mode = 0o777
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return misplaced(err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), &entryReader{u.ctx, u.in})
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	u.tree.file(name, runs, n, sum)
	return nil
}

// entryReader reads an entry of a tar until ctx ends.
type entryReader struct {
	ctx context.Context //nolint:containedctx // as the unpacker's
	in  *tar.Reader
}

func (r *entryReader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	n, err := r.in.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errWrongTar, err)
	}
	return n, err
}
