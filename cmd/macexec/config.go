package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/macexec/macexec/jobs/engine"
	"github.com/macexec/macexec/schemas"
	"github.com/macexec/macexec/telemetry"
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
	Retention struct {
		CompletedSeconds int64 `json:"completed_seconds"`
		CompletedCount   int   `json:"completed_count"`
		FailedSeconds    int64 `json:"failed_seconds"`
		FailedCount      int   `json:"failed_count"`
		CancelledSeconds int64 `json:"cancelled_seconds"`
		CancelledCount   int   `json:"cancelled_count"`
		JobBytes         int64 `json:"job_bytes"`
		JournalSeconds   int64 `json:"journal_seconds"`
		JournalEntries   int   `json:"journal_entries"`
		TrashSeconds     int64 `json:"trash_seconds"`
		TrashBytes       int64 `json:"trash_bytes"`
	} `json:"retention"`
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

	text   json.RawMessage // the file as JSON; nil if it says nothing
	fields []configField
}

// maxConfig bounds config.yaml; a long one has a few kilobytes.
const maxConfig = 1 << 20

// readConfigFile reads a regular file of a fair size: a daemon must not hang, or fill
// its memory, because of what somebody put in the file's place.
func readConfigFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxConfig:
		return nil, fmt.Errorf("%s has %d bytes, and %d are the most", path, info.Size(), maxConfig)
	}
	return io.ReadAll(io.LimitReader(f, maxConfig))
}

// readConfig reads a configuration; no file means the defaults, and a bad file is
// an error that names every fault, since a daemon must not run on a guess.
func readConfig(path string) (config, error) {
	raw, err := readConfigFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return config{}, err
	}
	c, report, err := judgeConfig(raw, path)
	if err != nil || report.OK {
		return c, err
	}
	var faults []string
	for _, p := range report.Problems {
		if p.Severity != schemas.SeverityError {
			continue
		}
		fault := strings.TrimPrefix(p.Pointer+": "+p.Message, ": ")
		if p.Line > 0 && !strings.Contains(p.Message, "line ") {
			fault = fmt.Sprintf("line %d: %s", p.Line, fault)
		}
		faults = append(faults, fault)
	}
	return c, fmt.Errorf("%s: %s", path, strings.Join(faults, "; "))
}

// judgeConfig reads the text of a configuration, and says what is wrong with it. The
// configuration counts only when the report is good.
func judgeConfig(raw []byte, path string) (config, schemas.LintReport, error) {
	schema, fields, err := configSchema()
	if err != nil {
		return config{}, schemas.LintReport{}, err
	}
	if isBlank(raw) {
		return config{fields: fields}, schemas.LintReport{File: path, OK: true, Problems: []schemas.LintProblem{}}, nil
	}
	text, report := schema.LintYAML(raw, path)
	c := config{fields: fields}
	if !report.OK {
		return c, report, nil
	}
	if err := json.Unmarshal(text, &c); err != nil {
		// What the schema takes for a whole number may be written as 1e3.
		report.OK = false
		report.Problems = append(report.Problems, schemas.LintProblem{
			Severity: schemas.SeverityError, Rule: "number", Message: err.Error(), Hint: "write whole numbers in digits alone",
		})
		return c, report, nil //nolint:nilerr // it is among the problems now
	}
	if problems := c.unusable(); len(problems) > 0 {
		report.OK, report.Problems = false, append(report.Problems, problems...)
		return c, report, nil
	}
	c.text = text
	return c, report, nil
}

// unusable says what is wrong with values that the schema takes.
func (c config) unusable() (problems []schemas.LintProblem) {
	check := func(pointer, rule, value string, check func(string) error) {
		if value == "" {
			return
		}
		if err := check(value); err != nil {
			problems = append(problems, schemas.LintProblem{Severity: schemas.SeverityError, Rule: rule, Pointer: pointer, Message: err.Error()})
		}
	}
	check("/metrics/listen", "loopback", c.Metrics.Listen, telemetry.CheckListen)
	check("/tracing/endpoint", "collector", c.Tracing.Endpoint, telemetry.CheckEndpoint)
	return problems
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
		Retention: engine.Retention{
			Completed: kept(c.Retention.CompletedSeconds, c.Retention.CompletedCount),
			Failed:    kept(c.Retention.FailedSeconds, c.Retention.FailedCount),
			Cancelled: kept(c.Retention.CancelledSeconds, c.Retention.CancelledCount),
			JobBytes:  c.Retention.JobBytes,

			JournalAge: time.Duration(c.Retention.JournalSeconds) * time.Second, JournalEntries: c.Retention.JournalEntries,
			TrashAge: time.Duration(c.Retention.TrashSeconds) * time.Second, TrashBytes: c.Retention.TrashBytes,
		},
	}
}

func kept(seconds int64, count int) engine.Kept {
	return engine.Kept{Age: time.Duration(seconds) * time.Second, Count: count}
}
