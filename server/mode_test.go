package server_test

import (
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/server"
)

// TestHealthFollowsTheMode: the host is SERVING only while it is open, as a whole and
// each service by itself, and who watches sees each change.
func TestHealthFollowsTheMode(t *testing.T) {
	t.Parallel()
	path := socket(t)
	f := &fakeEngine{host: engine.HostInfo{ID: "here"}}
	f.setMode = func(mode jobs.Mode, reason string) (engine.HostInfo, error) {
		if reason != "why" {
			return engine.HostInfo{}, jobs.Errorf(jobs.CodeRequestInvalid, "reason %q", reason)
		}
		f.listen(mode)
		return engine.HostInfo{ID: "here", Mode: jobs.HostMode{Mode: mode, By: "owner", Reason: reason}}, nil
	}
	serve(t, path, server.Options{Engine: f})
	conn := raw(t, path)
	health, host := healthpb.NewHealthClient(conn), macexecv1.NewHostServiceClient(conn)
	list, err := health.List(t.Context(), &healthpb.HealthListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	watches := map[string]grpc.ServerStreamingClient[healthpb.HealthCheckResponse]{}
	for name := range list.GetStatuses() {
		if watches[name], err = health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", "macexec.v1.JobService", "macexec.v1.HostService", "grpc.health.v1.Health"} {
		if watches[name] == nil {
			t.Errorf("the health of %q is not told", name)
		}
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for name, watch := range watches {
			if resp, err := watch.Recv(); err != nil || resp.GetStatus() != want {
				t.Errorf("%q is %s, %v; want %s", name, resp.GetStatus(), err, want)
			}
			if resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil || resp.GetStatus() != want {
				t.Errorf("%q is %s, %v; want %s", name, resp.GetStatus(), err, want)
			}
		}
	}
	expect(healthpb.HealthCheckResponse_SERVING)
	for _, step := range []struct {
		mode macexecv1.HostMode
		want healthpb.HealthCheckResponse_ServingStatus
	}{
		{macexecv1.HostMode_HOST_MODE_DRAINING, healthpb.HealthCheckResponse_NOT_SERVING},
		{macexecv1.HostMode_HOST_MODE_OPEN, healthpb.HealthCheckResponse_SERVING},
		{macexecv1.HostMode_HOST_MODE_PAUSED, healthpb.HealthCheckResponse_NOT_SERVING},
	} {
		resp, err := host.SetHostMode(t.Context(), &macexecv1.SetHostModeRequest{Mode: step.mode, Reason: "why"})
		if h := resp.GetHost(); err != nil || h.GetMode() != step.mode || h.GetModeBy() != "owner" || h.GetModeReason() != "why" {
			t.Fatalf("%s: %v, %v", step.mode, h, err)
		}
		expect(step.want)
	}
	if resp, err := host.GetHost(t.Context(), &macexecv1.GetHostRequest{}); err != nil || resp.GetHost().GetId() != "here" {
		t.Errorf("a paused host answers %v, %v", resp, err)
	}
}
