package server

import (
	"context"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Options are what a Server is made of.
type Options struct {
	Engine Engine
	// Config is the daemon's configuration. Nil: it has none that could be read again.
	Config Config
	// Resolve says who a peer is. Nil: OwnerOnly.
	Resolve Resolver
	// Log takes faults and panics. Nil: nowhere.
	Log *slog.Logger
	// Observe is told of each request. Nil: nobody is told.
	Observe Observe
}

// Server is the gRPC face on unix sockets. It also serves grpc.health.v1 (which says
// NOT_SERVING while the host is not open, and once the server drains) and server reflection v1.
//
// Messages have gRPC's default bound of 4 MiB. Arguments of more than 1 MiB get the
// engine's verdict ARGUMENTS_TOO_LARGE; a message beyond the bound gets
// RESOURCE_EXHAUSTED from gRPC, and the connection lives on. Every answer stays
// below the bound: lists are cut into pages, files and logs into chunks.
type Server struct {
	engine      Engine
	config      Config
	resolve     Resolver
	log         *slog.Logger
	observe     Observe
	permissions map[string]Role

	grpc     *grpc.Server
	health   *health.Server
	draining context.Context //nolint:containedctx // done once the server drains; nobody's request
	drain    context.CancelFunc
}

// New makes a Server that does not serve yet.
func New(o Options) *Server {
	s := &Server{engine: o.Engine, config: o.Config, resolve: o.Resolve, log: o.Log, observe: o.Observe, permissions: permissions(), health: health.NewServer()}
	if s.resolve == nil {
		s.resolve = OwnerOnly()
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.Creds(peerCredentials{resolve: s.resolve}),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		// As much as may be under way of one stream. gRPC would find a larger number by
		// itself, hold that much in memory, and lose it when a line breaks.
		grpc.InitialWindowSize(1<<20),
		grpc.InitialConnWindowSize(4<<20),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	macexecv1.RegisterToolServiceServer(s.grpc, &toolService{server: s})
	macexecv1.RegisterJobServiceServer(s.grpc, &jobService{server: s})
	macexecv1.RegisterFileServiceServer(s.grpc, &fileService{server: s})
	macexecv1.RegisterJournalServiceServer(s.grpc, &journalService{server: s})
	macexecv1.RegisterHostServiceServer(s.grpc, &hostService{server: s})
	macexecv1.RegisterStoreServiceServer(s.grpc, &storeService{server: s})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.RegisterV1(s.grpc)
	s.engine.OnMode(s.showMode)
	return s
}

// showMode lets the health service say SERVING, for the whole and for each service,
// only while the host is open: who distributes work then goes elsewhere. A host that
// is not open answers all the same. Once the server drains nothing changes any more.
func (s *Server) showMode(mode jobs.Mode) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if mode == jobs.ModeOpen {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, status)
	}
}

// Serve answers requests on a listener until Stop, which makes it return nil. It
// closes the listener. It may be called for several listeners at a time.
func (s *Server) Serve(lis net.Listener) error { return s.grpc.Serve(lis) }

// Stop ends serving: health says NOT_SERVING, no new requests are taken, streams end
// with UNAVAILABLE and the cursor to go on from, and requests that are being answered
// are answered. When ctx ends first, what is left is cut off, and Stop returns ctx's
// error; a submission that the engine is writing is then still written, and its
// caller learns of it by its key.
func (s *Server) Stop(ctx context.Context) error {
	s.health.Shutdown()
	s.drain()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.grpc.Stop() // GracefulStop itself goes on waiting for the handlers
		return ctx.Err()
	}
}
