package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// remoteKinds are the file systems whose files are kept by another host or another
// process, by the number that statfs says.
func remoteKinds() map[uint32]string {
	return map[uint32]string{
		unix.NFS_SUPER_MAGIC:   "nfs",
		unix.SMB_SUPER_MAGIC:   "smb",
		unix.SMB2_SUPER_MAGIC:  "smb2",
		unix.CIFS_SUPER_MAGIC:  "cifs",
		unix.FUSE_SUPER_MAGIC:  "fuse",
		unix.V9FS_MAGIC:        "9p",
		unix.AFS_SUPER_MAGIC:   "afs",
		unix.AFS_FS_MAGIC:      "afs",
		unix.CODA_SUPER_MAGIC:  "coda",
		unix.CEPH_SUPER_MAGIC:  "ceph",
		unix.NCP_SUPER_MAGIC:   "ncp",
		unix.OCFS2_SUPER_MAGIC: "ocfs2",
		0x0BD00BD0:             "lustre",
		0x01161970:             "gfs2",
		0x47504653:             "gpfs",
		0x786F4256:             "vboxsf",
		0x20030528:             "orangefs",
		0x19830326:             "beegfs",
		0xAAD7AAEA:             "panfs",
	}
}

// fileSystemOf says what kind of file system a folder lies on, and whether it is this
// host's own.
func fileSystemOf(dir string) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false, err
	}
	magic := uint32(st.Type) // its low 32 bits are the number
	if name, remote := remoteKinds()[magic]; remote {
		return name, false, nil
	}
	return fmt.Sprintf("%#x", magic), true, nil
}
