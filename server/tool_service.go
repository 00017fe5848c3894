package server

import (
	"context"

	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

type toolService struct {
	macexecv1.UnsafeToolServiceServer

	server *Server
}

func (s *toolService) ListTools(ctx context.Context, req *macexecv1.ListToolsRequest) (*macexecv1.ListToolsResponse, error) {
	tools, problems, err := s.server.engine.Tools(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	tools, next, err := pageOf(tools, req, func(t engine.ToolInfo) (string, int) {
		return t.Name, len(t.Description) + len(t.InputSchema) + len(t.OutputSchema) + 4<<10
	})
	if err != nil {
		return nil, err
	}
	resp := &macexecv1.ListToolsResponse{Tools: each(tools, convertToolInfo), NextPageToken: next}
	if req.GetPageToken() == "" {
		resp.Problems = each(problems, func(p engine.ToolProblem) *macexecv1.ToolProblem {
			return &macexecv1.ToolProblem{File: p.File, Message: shorten(p.Message, 4<<10)}
		})
	}
	return resp, nil
}

func (s *toolService) GetTool(ctx context.Context, req *macexecv1.GetToolRequest) (*macexecv1.GetToolResponse, error) {
	tool, err := s.server.engine.Tool(ctx, caller(ctx), req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	return &macexecv1.GetToolResponse{Tool: convertToolInfo(tool)}, nil
}

func (s *toolService) CheckCall(ctx context.Context, req *macexecv1.CheckCallRequest) (*macexecv1.CheckCallResponse, error) {
	call, err := requestOf(req, "")
	if err != nil {
		return nil, err
	}
	check, err := s.server.engine.Check(ctx, caller(ctx), call)
	if err != nil {
		return nil, err
	}
	out := convertCheck(check)
	out.Context = convertContext(call.Context)
	return &macexecv1.CheckCallResponse{Check: out}, nil
}
