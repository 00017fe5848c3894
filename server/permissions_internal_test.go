package server

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/macexec/macexec/jobs"
	_ "github.com/macexec/macexec/proto/macexec/v1"
)

// TestEveryMethodNeedsARole: a new RPC without an entry would be refused at run
// time; this says so before. The other way round, no entry is left behind.
func TestEveryMethodNeedsARole(t *testing.T) {
	t.Parallel()
	table := permissions()
	methods := map[string]bool{}
	for f := range protoregistry.GlobalFiles.RangeFiles {
		if f.Package() != "macexec.v1" {
			continue
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				methods[fullMethod(service.Methods().Get(j))] = true
			}
		}
	}
	if len(methods) == 0 {
		t.Fatal("the API has no methods")
	}
	s := New(Options{Engine: silent{}})
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			methods["/"+service+"/"+m.Name] = true
		}
	}
	for m := range methods {
		if _, ok := table[m]; !ok {
			t.Errorf("%s has no entry in permissions", m)
		}
	}
	for m, role := range table {
		if !methods[m] {
			t.Errorf("permissions has an entry for %s, which does not exist", m)
		}
		if role != roleNone && !slices.Contains(Roles(), role) {
			t.Errorf("%s needs the role %q, which does not exist", m, role)
		}
	}
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// TestUnlistedMethodIsRefused (G10).
func TestUnlistedMethodIsRefused(t *testing.T) {
	t.Parallel()
	s := New(Options{Engine: silent{}})
	if err := s.authorize(Principal{Name: "owner", Roles: Roles()}, "/macexec.v1.JobService/Forgotten"); err == nil {
		t.Error("a method without an entry was allowed")
	}
}

// silent is an engine that nobody asks anything.
type silent struct{ Engine }

func (silent) OnMode(func(jobs.Mode)) {}
