package server

import (
	"context"

	"github.com/macexec/macexec/jobs/engine"
)

// Adapt makes the engine an Engine.
func Adapt(e *engine.Engine) Engine { return adapted{e} }

type adapted struct{ *engine.Engine }

func (a adapted) Upload(ctx context.Context, c engine.Caller, req engine.UploadRequest) (Upload, error) {
	u, err := a.Engine.Upload(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return u, nil
}
