package server

import (
	"context"

	"github.com/macexec/macexec/jobs"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

type hostService struct {
	macexecv1.UnsafeHostServiceServer

	server *Server
}

func (s *hostService) GetHost(ctx context.Context, _ *macexecv1.GetHostRequest) (*macexecv1.GetHostResponse, error) {
	host, err := s.server.engine.Host(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &macexecv1.GetHostResponse{Host: convertHost(host)}, nil
}

func (s *hostService) SetHostMode(ctx context.Context, req *macexecv1.SetHostModeRequest) (*macexecv1.SetHostModeResponse, error) {
	mode, err := word[jobs.Mode]("mode", req.GetMode())
	if err != nil {
		return nil, err
	}
	host, err := s.server.engine.SetMode(ctx, caller(ctx), mode, req.GetReason())
	if err != nil {
		return nil, err
	}
	return &macexecv1.SetHostModeResponse{Host: convertHost(host)}, nil
}

func (s *hostService) WhoAmI(ctx context.Context, _ *macexecv1.WhoAmIRequest) (*macexecv1.WhoAmIResponse, error) {
	p := principal(ctx)
	return &macexecv1.WhoAmIResponse{Identity: &macexecv1.Identity{
		Principal: p.Name, Roles: each(p.Roles, func(r Role) string { return string(r) }), Proof: p.Proof, Host: s.server.engine.HostID(),
	}}, nil
}

func (s *hostService) ListProjects(ctx context.Context, req *macexecv1.ListProjectsRequest) (*macexecv1.ListProjectsResponse, error) {
	projects, err := s.server.engine.Projects(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(projects, req, func(p jobs.Project) (string, int) { return p.Name, len(p.Name) + len(p.Root) + 16 })
	if err != nil {
		return nil, err
	}
	return &macexecv1.ListProjectsResponse{Projects: each(page, convertProject), NextPageToken: next}, nil
}

func (s *hostService) AddProject(ctx context.Context, req *macexecv1.AddProjectRequest) (*macexecv1.AddProjectResponse, error) {
	if req.GetProject() == nil {
		return nil, badField("project", "is missing")
	}
	project, err := s.server.engine.AddProject(ctx, caller(ctx), jobs.Project{
		Name: req.GetProject().GetName(), Root: req.GetProject().GetRoot(),
	})
	if err != nil {
		return nil, err
	}
	return &macexecv1.AddProjectResponse{Project: convertProject(project)}, nil
}

func (s *hostService) RemoveProject(ctx context.Context, req *macexecv1.RemoveProjectRequest) (*macexecv1.RemoveProjectResponse, error) {
	if err := s.server.engine.RemoveProject(ctx, caller(ctx), req.GetName()); err != nil {
		return nil, err
	}
	return &macexecv1.RemoveProjectResponse{}, nil
}
