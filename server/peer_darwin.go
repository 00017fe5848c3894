package server

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel for the credentials that the peer had when it connected.
// The pid is that of the process that last used the socket: a hint, never proof.
func peerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Xucred
	var credErr error
	var pid int
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if credErr == nil {
			pid, _ = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
		}
	})
	if err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	// Another layout would put something else where the uid is.
	if cred.Version != 0 {
		return Peer{}, fmt.Errorf("peer credentials have the unknown layout %d", cred.Version)
	}
	return Peer{UID: cred.Uid, PID: int32(pid)}, nil
}
