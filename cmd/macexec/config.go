package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/schemas"
)

// config is config.yaml of the state folder (schemas/config.schema.json). The zero
// value is the safe default of a folder without one.
type config struct {
	Projects map[string]string `json:"projects"`
	ToolPath []string          `json:"tool_path"`
	Slots    map[string]int    `json:"slots"`
	Limits   struct {
		UploadBytes            int64 `json:"upload_bytes"`
		UploadUnusedSeconds    int64 `json:"upload_unused_seconds"`
		LogBytes               int64 `json:"log_bytes"`
		ApprovalExpiresSeconds int64 `json:"approval_expires_seconds"`
		MaxAttempts            int   `json:"max_attempts"`
	} `json:"limits"`
	Confinement string `json:"confinement"`
	Metrics     struct {
		Listen string `json:"listen"`
	} `json:"metrics"`
	Tracing struct {
		Endpoint string   `json:"endpoint"`
		Sample   *float64 `json:"sample"` // nil: every trace
	} `json:"tracing"`
	Log struct {
		Format string `json:"format"`
		Level  string `json:"level"`
	} `json:"log"`
}

// readConfig reads a configuration; no file means the defaults, and a bad file is
// an error that names every fault, since a daemon must not run on a guess.
func readConfig(path string) (config, error) {
	var c config
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if isBlank(raw) {
		return c, nil
	}
	schema, ok := schemas.Document("config")
	if !ok {
		return c, errors.New("this build has no schema for its configuration")
	}
	text, findings := schema.ValidateYAML(raw)
	if len(findings) > 0 {
		var faults []string
		for _, f := range findings {
			faults = append(faults, strings.TrimPrefix(f.Pointer+": "+f.Message, ": "))
		}
		return c, fmt.Errorf("%s: %s", path, strings.Join(faults, "; "))
	}
	err = json.Unmarshal(text, &c)
	return c, err
}

// isBlank reports whether a file says nothing: every field may be left out.
func isBlank(raw []byte) bool {
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func (c config) limits() engine.Limits {
	return engine.Limits{
		Slots: c.Slots, MaxAttempts: c.Limits.MaxAttempts,
		ApprovalExpiry: time.Duration(c.Limits.ApprovalExpiresSeconds) * time.Second,
		BlobUnused:     time.Duration(c.Limits.UploadUnusedSeconds) * time.Second,
		UploadBytes:    c.Limits.UploadBytes, LogBytes: c.Limits.LogBytes,
		RequireConfinement: c.Confinement == "required",
	}
}
