package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
)

// Peer is what the kernel says about the process at the other end of a unix
// socket, as of its connect. UID is proof; PID is only a hint on macOS, where it
// is the last process that used the socket.
type Peer struct {
	UID uint32
	PID int32
}

// Role is a right to ask for some kinds of things.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"   // may look
	RoleCaller   Role = "caller"   // may make calls, and cancel them
	RoleApprover Role = "approver" // may approve and deny
	RoleOperator Role = "operator" // may change the host and resolve jobs
)

// Roles lists every role.
func Roles() []Role { return []Role{RoleViewer, RoleCaller, RoleApprover, RoleOperator} }

// Principal is who a peer proves to be.
type Principal struct {
	Name  string
	Roles []Role
	Proof string // in words, such as "unix uid 501"
}

// Resolver says who a peer is. An error refuses it; a *jobs.Error is shown to it.
type Resolver func(Peer) (Principal, error)

// OwnerOnly takes this process's own user, and root, for the principal "owner" with
// every role, and refuses everybody else.
func OwnerOnly() Resolver {
	own := uint32(os.Geteuid())
	return func(p Peer) (Principal, error) {
		if p.UID != own && p.UID != 0 {
			return Principal{}, jobs.Errorf(jobs.CodeNotAuthenticated, "uid %d is not the user that this daemon serves", p.UID)
		}
		return Principal{Name: "owner", Roles: Roles(), Proof: fmt.Sprintf("unix uid %d", p.UID)}, nil
	}
}

// peerCredentials are transport credentials that add nothing to a unix socket but
// the kernel's word about the peer.
type peerCredentials struct{ resolve Resolver }

// peerInfo carries who the peer is from the handshake, when the process that connects
// is there to be looked at, to the requests.
type peerInfo struct {
	credentials.CommonAuthInfo

	principal Principal
	refused   error
}

func (peerInfo) AuthType() string { return "unix" }

func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("a peer on %s has no credentials", conn.LocalAddr().Network())
	}
	p, err := peerOf(unix)
	if err != nil {
		return nil, nil, fmt.Errorf("the peer's credentials: %w", err)
	}
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	info.principal, info.refused = c.resolve(p)
	return conn, info, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for a server")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

func (peerCredentials) OverrideServerName(string) error { return nil }

// identify resolves the principal of a request's peer.
func (s *Server) identify(ctx context.Context) (Principal, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Principal{}, jobs.Errorf(jobs.CodeNotAuthenticated, "the request has no peer")
	}
	info, ok := p.AuthInfo.(peerInfo)
	if !ok {
		return Principal{}, jobs.Errorf(jobs.CodeNotAuthenticated, "the peer has no credentials")
	}
	return info.principal, info.refused
}

type principalKey struct{}

func withPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// principal returns who asks; the guard has put it into every context.
func principal(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

func caller(ctx context.Context) engine.Caller { return engine.Caller{Principal: principal(ctx).Name} }
