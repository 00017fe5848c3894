package endtoend

import (
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// setMode sets the mode of the host.
func (d *daemon) setMode(mode macexecv1.HostMode) *macexecv1.HostInfo {
	d.t.Helper()
	resp, err := d.Host.SetHostMode(d.context(), &macexecv1.SetHostModeRequest{Mode: mode, Reason: "maintenance"})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.GetHost()
}

// wantMode holds what the host says of itself, to people and to load balancers.
func (d *daemon) wantMode(want macexecv1.HostMode) {
	d.t.Helper()
	host, err := d.Host.GetHost(d.context(), &macexecv1.GetHostRequest{})
	if h := host.GetHost(); err != nil || h.GetMode() != want || h.GetModeBy() != "owner" || h.GetModeReason() != "maintenance" || h.GetModeSince() == nil ||
		h.GetAccepting() != (want != macexecv1.HostMode_HOST_MODE_DRAINING) {
		d.t.Errorf("the host is %v, %v; want %s", h, err, want)
	}
	conn, err := grpc.NewClient(d.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	list, err := healthpb.NewHealthClient(conn).List(d.context(), &healthpb.HealthListRequest{})
	if err != nil || len(list.GetStatuses()) < 6 {
		d.t.Fatalf("health says %v, %v", list, err)
	}
	serving := healthpb.HealthCheckResponse_NOT_SERVING
	if want == macexecv1.HostMode_HOST_MODE_OPEN {
		serving = healthpb.HealthCheckResponse_SERVING
	}
	for name, s := range list.GetStatuses() {
		if s.GetStatus() != serving {
			d.t.Errorf("the health of %q is %s in %s", name, s.GetStatus(), want)
		}
	}
}

// G2, G7: a host is drained, and its daemon exchanged, in the middle of twenty jobs
// that run and some that wait. Each completes, and starts once; health tells of it;
// the mode stays; repeats are answered all the while and nothing new is taken, until
// the host is opened.
func TestG7_DrainAndRestartAmongRunningJobs(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t, "slots: {ledger: 20}"), newLedgers(t)
	const busy, waiting = 20, 5
	var requests []*macexecv1.SubmitJobRequest
	var ids []string
	opens := map[int]func(){}
	for i := range busy + waiting {
		name := fmt.Sprint("j", i)
		opens[i] = l.gate(name)
		requests = append(requests, call(name, "ledger_none", l.args(name, "gate")))
		ids = append(ids, d.submit(requests[i]).GetId())
	}
	for i := range busy {
		l.await(fmt.Sprint("j", i), "begin", 1)
	}
	answered := func(when string) {
		t.Helper()
		for i, req := range requests {
			if again := d.submit(req); again.GetId() != ids[i] || !again.GetReplayed() {
				t.Errorf("%s: the repeat of call %d is job %s (replayed %t), want %s", when, i, again.GetId(), again.GetReplayed(), ids[i])
			}
		}
		_, err := d.Submit(d.context(), call("new", "ledger_none", l.args("new")))
		if e := wantCode(t, err, "HOST_DRAINING"); !e.Detail.GetRetryable() {
			t.Errorf("%s: %v", when, e.Detail)
		}
		_, err = d.Jobs.LookupKey(d.context(), &macexecv1.LookupKeyRequest{Key: "new"})
		wantCode(t, err, "JOB_NOT_FOUND")
	}
	if host := d.setMode(macexecv1.HostMode_HOST_MODE_DRAINING); host.GetRunning() != busy || host.GetQueued() != waiting {
		t.Errorf("%d jobs run and %d wait, want %d and %d", host.GetRunning(), host.GetQueued(), busy, waiting)
	}
	d.wantMode(macexecv1.HostMode_HOST_MODE_DRAINING)
	answered("draining")

	d.end(syscall.SIGTERM)
	for i := range busy / 2 { // half of them end while no daemon is there
		opens[i]()
		l.await(fmt.Sprint("j", i), "end", 1)
	}
	d.start()
	d.wantMode(macexecv1.HostMode_HOST_MODE_DRAINING)
	answered("after the restart")
	for i := busy / 2; i < busy+waiting; i++ {
		opens[i]()
	}
	for i, id := range ids {
		d.wait(id, completed)
		l.wantStarts(fmt.Sprint("j", i), 1)
	}
	answered("when all is done")
	d.setMode(macexecv1.HostMode_HOST_MODE_OPEN)
	d.wantMode(macexecv1.HostMode_HOST_MODE_OPEN)
	d.wait(d.submit(call("new", "ledger_none", l.args("new"))).GetId(), completed)
	l.wantStarts("new", 1)
}

// G12: a daemon that is told to stop ends every stream with the cursor to go on from,
// and every wait with an answer; jobs stay with their keepers.
func TestG12_StopEndsStreamsAndWaits(t *testing.T) {
	t.Parallel()
	d, l := startDaemon(t), newLedgers(t)
	open := l.gate("a")
	id := d.submit(call("k", "ledger_none", l.args("a", "print:hello", "gate", "print:bye"))).GetId()
	l.await("a", "begin", 1)
	conn, err := grpc.NewClient(d.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := macexecv1.NewJobServiceClient(conn)
	watch, err := api.WatchJobs(d.context(), &macexecv1.WatchJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	logs, err := api.ReadJobLogs(d.context(), &macexecv1.ReadJobLogsRequest{JobId: id, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	journal, err := macexecv1.NewJournalServiceClient(conn).ReadJournal(d.context(), &macexecv1.ReadJournalRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1) // once the log has said what the tool said first
	ends := map[string]chan error{"watch": make(chan error, 1), "logs": make(chan error, 1), "journal": make(chan error, 1), "wait": make(chan error, 1)}
	go func() { ends["watch"] <- drain(watch) }()
	go func() { ends["journal"] <- drain(journal) }()
	go func() {
		_, err := logs.Recv()
		said <- err
		ends["logs"] <- drain(logs)
	}()
	go func() {
		_, err := api.WaitJob(d.context(), &macexecv1.WaitJobRequest{Id: id, WaitSeconds: 300})
		ends["wait"] <- err
	}()
	if err := <-said; err != nil {
		t.Fatal(err)
	}
	d.end(syscall.SIGTERM)
	for name, end := range ends {
		st := status.Convert(<-end)
		var detail *macexecv1.Error
		for _, d := range st.Details() {
			if e, ok := d.(*macexecv1.Error); ok {
				detail = e
			}
		}
		if st.Code() != codes.Unavailable || detail.GetCode() != "HOST_DRAINING" || (detail.GetMetadata()["cursor"] != "") != (name != "wait") {
			t.Errorf("the %s ended with %v: %v", name, st, detail)
		}
	}
	d.start()
	open()
	d.wait(id, completed)
	l.wantStarts("a", 1)
}

// drain reads a stream to its end.
func drain[M any](stream grpc.ServerStreamingClient[M]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}
