package server_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/server"
)

// TestPeerIsProved: the kernel says who is at the other end, and the engine hears
// the principal that the peer proves.
func TestPeerIsProved(t *testing.T) {
	t.Parallel()
	path := socket(t)
	peers := make(chan server.Peer, 1)
	f := &fakeEngine{principal: make(chan string, 1), job: func(string) (*jobs.Job, error) { return &jobs.Job{}, nil }}
	serve(t, path, server.Options{Engine: f, Resolve: func(p server.Peer) (server.Principal, error) {
		peers <- p
		return server.Principal{Name: "ci", Roles: server.Roles()}, nil
	}})
	if _, err := dial(t, path).Jobs.GetJob(t.Context(), &macexecv1.GetJobRequest{}); err != nil {
		t.Fatal(err)
	}
	if p := <-peers; int(p.UID) != os.Geteuid() || int(p.PID) != os.Getpid() {
		t.Errorf("the peer is %+v, and this is uid %d, pid %d", p, os.Geteuid(), os.Getpid())
	}
	if p := <-f.principal; p != "ci" {
		t.Errorf("the engine heard %q", p)
	}
}

// TestOwnerOnly: this user and root, and nobody else.
func TestOwnerOnly(t *testing.T) {
	t.Parallel()
	resolve := server.OwnerOnly()
	own := uint32(os.Geteuid())
	for _, uid := range []uint32{own, 0} {
		if p, err := resolve(server.Peer{UID: uid}); err != nil || p.Name != "owner" {
			t.Errorf("uid %d is %v, %v", uid, p, err)
		}
	}
	if p, err := resolve(server.Peer{UID: own + 1}); jobs.CodeOf(err) != jobs.CodeNotAuthenticated {
		t.Errorf("another user is %v, %v", p, err)
	}
}

// TestRolesComeFirst (G10): a caller without the role learns nothing, not even
// whether the job exists; the engine is not asked.
func TestRolesComeFirst(t *testing.T) {
	t.Parallel()
	path := socket(t)
	serve(t, path, server.Options{Engine: &fakeEngine{}, Resolve: func(server.Peer) (server.Principal, error) {
		return server.Principal{Name: "guest", Roles: []server.Role{server.RoleViewer}}, nil
	}})
	c := dial(t, path)
	_, err := c.Jobs.ApproveJob(t.Context(), &macexecv1.ApproveJobRequest{Id: "J"})
	if status.Code(err) != codes.PermissionDenied || failure(t, err).Code() != "NOT_AUTHORIZED" {
		t.Errorf("approve: %v", err)
	}
	stream, err := c.Files.UploadFile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("upload: %v", err)
	}
	if id, err := c.WhoAmI(t.Context()); err != nil || id.GetPrincipal() != "guest" {
		t.Errorf("whoami: %v, %v", id, err)
	}
}

// TestUnknownPeer: who proves nothing gets UNAUTHENTICATED on every kind of request.
func TestUnknownPeer(t *testing.T) {
	t.Parallel()
	path := socket(t)
	serve(t, path, server.Options{Engine: &fakeEngine{}, Resolve: func(server.Peer) (server.Principal, error) {
		return server.Principal{}, jobs.Errorf(jobs.CodeNotAuthenticated, "nobody knows you")
	}})
	c := dial(t, path)
	if _, err := c.WhoAmI(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("whoami: %v", err)
	}
	err := c.Watch(t.Context(), &macexecv1.WatchJobsRequest{}, func(*macexecv1.Event) error { return nil })
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("watch: %v", err)
	}
}

func TestListenUnix(t *testing.T) {
	t.Parallel()
	t.Run("private", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(filepath.Dir(socket(t)), "new", "s")
		lis, err := server.ListenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
			if info, err := os.Lstat(name); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
			}
		}
	})
	t.Run("a dead socket is replaced", func(t *testing.T) {
		t.Parallel()
		path := socket(t)
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		if err := dead.Close(); err != nil {
			t.Fatal(err)
		}
		lis, err := server.ListenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = lis.Close()
	})

	refused := map[string]struct {
		prepare func(t *testing.T, path string)
		want    string
	}{
		"a living socket": {func(t *testing.T, path string) {
			t.Helper()
			lis, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lis.Close() })
		}, "already answers"},
		"a file": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "in the way"},
		"a link": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Symlink(path+".elsewhere", path); err != nil {
				t.Fatal(err)
			}
		}, "in the way"},
		"an open folder": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "chmod 700"},
	}
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socket(t)
			c.prepare(t, path)
			before, _ := os.Lstat(path)
			lis, err := server.ListenUnix(path)
			if err == nil {
				_ = lis.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if after, _ := os.Lstat(path); (before == nil) != (after == nil) || before != nil && !os.SameFile(before, after) {
				t.Error("what was there is no longer there")
			}
		})
	}
	t.Run("a long path", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(filepath.Dir(socket(t)), strings.Repeat("x", 100))
		if _, err := server.ListenUnix(path); err == nil || !strings.Contains(err.Error(), "103") {
			t.Errorf("%v", err)
		}
	})
}
