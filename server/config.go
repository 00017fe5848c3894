package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// Config is what this face needs of the daemon's configuration. Errors are
// *jobs.Error.
type Config interface {
	// Reload reads the file again; after an error nothing has changed. It returns the
	// fields whose change is in force now, and those that need a restart.
	Reload(ctx context.Context, c engine.Caller) (applied, needsRestart []string, err error)
	// Show says what is in force, and what the file as it is now would change.
	Show(ctx context.Context, c engine.Caller) (ConfigState, error)
}

// ConfigState is what is in force of a configuration, beside what its file says.
type ConfigState struct {
	Path    string
	ReadAt  time.Time
	Problem string // why the file cannot be used; empty: it can
	Fields  []ConfigField
}

// ConfigField is one field of a configuration. Values are JSON text.
type ConfigField struct {
	Pointer      string
	Value        []byte // in force; nil if there is none
	Default      bool   // the file that was read does not say
	Differs      bool   // the file as it is now says something else
	FileValue    []byte // what it says, if it differs and says anything
	NeedsRestart bool   // for a change
}

// configured gives the daemon's configuration, which a server may be without.
func (s *Server) configured() (Config, error) {
	if s.config == nil {
		return nil, jobs.Errorf(jobs.CodeStateConflict, "this daemon was started without a configuration")
	}
	return s.config, nil
}

func (s *hostService) ReloadConfig(ctx context.Context, _ *macexecv1.ReloadConfigRequest) (*macexecv1.ReloadConfigResponse, error) {
	config, err := s.server.configured()
	if err != nil {
		return nil, err
	}
	applied, needsRestart, err := config.Reload(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &macexecv1.ReloadConfigResponse{Applied: applied, NeedsRestart: needsRestart}, nil
}

func (s *hostService) GetConfig(ctx context.Context, _ *macexecv1.GetConfigRequest) (*macexecv1.GetConfigResponse, error) {
	config, err := s.server.configured()
	if err != nil {
		return nil, err
	}
	state, err := config.Show(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &macexecv1.GetConfigResponse{Config: &macexecv1.Config{
		Path: state.Path, ReadAt: timestamppb.New(state.ReadAt), Problem: state.Problem,
		Fields: each(state.Fields, func(f ConfigField) *macexecv1.ConfigField {
			return &macexecv1.ConfigField{
				Pointer: f.Pointer, Value: f.Value, IsDefault: f.Default,
				Differs: f.Differs, FileValue: f.FileValue, NeedsRestart: f.NeedsRestart,
			}
		}),
	}}, nil
}
