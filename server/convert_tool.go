package server

import (
	"slices"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func convertToolRef(t jobs.ToolRef) *macexecv1.ToolRef {
	return &macexecv1.ToolRef{
		Name: t.Name, Version: t.Version, ManifestDigest: t.ManifestDigest,
		Effects: enum[macexecv1.Effects](t.Effects), Destructive: t.Destructive,
	}
}

func convertProgram(p jobs.Program) *macexecv1.Program {
	return &macexecv1.Program{Name: p.Name, Path: p.Path, Version: p.Version, Sha256: p.SHA256}
}

func convertToolInfo(t engine.ToolInfo) *macexecv1.ToolInfo {
	return &macexecv1.ToolInfo{
		Name: t.Name, Version: t.Version, Title: t.Title, Description: t.Description,
		Effects: enum[macexecv1.Effects](t.Effects), Destructive: t.Destructive,
		Purposes: slices.Clone(t.Purposes), Needs: slices.Clone(t.Needs),
		InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, ManifestDigest: t.ManifestDigest, Source: t.Source,
		Available: t.Available, Missing: slices.Clone(t.Missing), Programs: each(t.Programs, convertProgram),
		KeyOptional: t.KeyOptional, SecretArguments: slices.Clone(t.SecretArguments),
		FileArguments: each(t.FileArguments, func(f engine.FileArgument) *macexecv1.FileArgument {
			return &macexecv1.FileArgument{Name: f.Name, Role: enum[macexecv1.FileRole](f.Role), Kinds: slices.Clone(f.Kinds)}
		}),
	}
}

func convertCheck(c engine.Check) *macexecv1.Check {
	out := &macexecv1.Check{
		Tool: convertToolRef(c.Tool), Verdicts: convertVerdicts(c.Verdicts), Fingerprint: c.Fingerprint,
		Programs: each(c.Programs, convertProgram), Publishes: each(c.Publishes, convertStep), Warnings: slices.Clone(c.Warnings),
	}
	if c.Decision != nil {
		out.Decision = convertDecision(*c.Decision)
	}
	return out
}
