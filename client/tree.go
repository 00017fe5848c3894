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
	"strings"
	"unicode"

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
	if _, err := os.Lstat(path); err == nil {
		return nil, &fs.PathError{Op: opDownload, Path: path, Err: fs.ErrExist}
	}
	p, err := openPart(path, info)
	if err != nil {
		return nil, err
	}
	defer p.close()
	temp := path + partSuffix + ".folder"
	if _, err := os.Lstat(temp); err == nil && !p.again {
		return nil, errors.Join(&fs.PathError{Op: opDownload, Path: temp, Err: errors.New("it is in the way, and no download left it; move it away")}, p.removeEmpty())
	}
	if err := c.fillFolder(ctx, p, temp, transferOf(options)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp), p.removeEmpty())
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	return info, p.remove()
}

// fillFolder brings over what a part lacks and unpacks it. A part that an earlier run
// left and that turns out to be wrong is brought over anew, once.
func (c *Client) fillFolder(ctx context.Context, p *part, temp string, t transfer) error {
	for {
		had, err := p.size()
		if err != nil {
			return err
		}
		if _, err := c.downloadRaw(ctx, p.Reference, had, p.f, t); err != nil {
			return err
		}
		digest, err := unpack(io.NewSectionReader(p.f, 0, p.Transfer), temp)
		if err == nil && digest != p.SHA256 {
			err = fmt.Errorf("%s arrived with the digest %s, and it has %s", p.Reference, digest, p.SHA256)
		}
		if err == nil || had == 0 {
			return err
		}
		if err := p.f.Truncate(0); err != nil {
			return err
		}
	}
}

// unpack makes the folder dir anew from a tar, and returns the digest of what it holds.
func unpack(r io.Reader, dir string) (digest string, err error) {
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
	u := unpacker{root: root, in: tar.NewReader(bufio.NewReader(r)), sum: sha256.New()}
	fmt.Fprintln(u.sum, "macexec-tree-v1")
	for {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(u.sum.Sum(nil)), nil
		}
		if err != nil {
			return "", fmt.Errorf("read the tar: %w", err)
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
	root *os.Root
	in   *tar.Reader
	sum  hash.Hash
	last string
}

func (u *unpacker) take(h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	control := func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }
	switch {
	case !fs.ValidPath(name) || name == "." || path.Clean(name) != name || strings.ContainsFunc(name, control):
		return errors.New("it is no plain relative path")
	case name <= u.last:
		return errors.New("it does not come in order")
	}
	u.last = name
	switch h.Typeflag {
	case tar.TypeDir:
		if h.Name == name || h.Size != 0 {
			return errors.New("it is no proper folder")
		}
		fmt.Fprintf(u.sum, "dir 0 - %s\n", name)
		return u.root.Mkdir(name, 0o777)
	case tar.TypeReg:
		if h.Name != name {
			return errors.New("it is no proper file")
		}
		return u.file(name, h)
	default:
		return errors.New("it is neither a file nor a folder")
	}
}

func (u *unpacker) file(name string, h *tar.Header) error {
	mode, word := fs.FileMode(0o666), "0644"
	if h.Mode&0o100 != 0 {
		mode, word = 0o777, "0755"
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), u.in)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Fprintf(u.sum, "%s %d %s %s\n", word, n, hex.EncodeToString(sum.Sum(nil)), name)
	return nil
}
