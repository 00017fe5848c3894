package schemas

import (
	"cmp"
	"fmt"
	"slices"
)

// LintReport is what an author should know about a manifest, or about a
// configuration, which has no tool and no version. It is the document of
// schemas/lint.schema.json.
type LintReport struct {
	File     string        `json:"file"`
	Tool     string        `json:"tool"`
	Version  string        `json:"version"`
	OK       bool          `json:"ok"` // no error; warnings do not count
	Problems []LintProblem `json:"problems"`
}

// LintProblem is one thing that is wrong with the file.
type LintProblem struct {
	Line     int    `json:"line"` // 0: unknown
	Severity string `json:"severity"`
	Pointer  string `json:"pointer"` // into the file
	Rule     string `json:"rule"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

// Lint judges one manifest as the registry would, and adds warnings. file is only
// named in the report.
func Lint(raw []byte, file string) (LintReport, error) {
	l, err := newLoader()
	if err != nil {
		return LintReport{}, err
	}
	report := LintReport{File: file, Problems: []LintProblem{}}
	tool, issues, lines := l.load(raw, file)
	if tool != nil {
		report.OK, report.Tool, report.Version = true, tool.Manifest.Tool, tool.Version
	} else if lines != nil {
		object := asObject(lines.json)
		report.Tool, _ = object["tool"].(string)
		report.Version, _ = object["version"].(string)
	}
	for _, i := range issues {
		p := LintProblem{Line: i.line, Severity: i.severity, Pointer: i.pointer, Rule: i.rule, Message: i.message, Hint: i.hint}
		if lines != nil {
			p.Line = lines.line(i.pointer)
		}
		report.Problems = append(report.Problems, p)
	}
	slices.SortStableFunc(report.Problems, func(a, b LintProblem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Severity, b.Severity))
	})
	return report, nil
}

// LintYAML judges a document written in YAML, and returns it as JSON.
func (d *DocumentSchema) LintYAML(raw []byte, file string) ([]byte, LintReport) {
	report := LintReport{File: file, Problems: []LintProblem{}}
	text, findings := d.readYAML(raw)
	for _, f := range findings {
		p := LintProblem{Line: lineIn(f.Message), Severity: SeverityError, Pointer: f.Pointer, Rule: f.Keyword, Message: f.Message, Hint: f.Hint}
		if text != nil {
			p.Line = text.line(f.Pointer)
		}
		report.Problems = append(report.Problems, p)
	}
	slices.SortStableFunc(report.Problems, func(a, b LintProblem) int { return cmp.Compare(a.Line, b.Line) })
	report.OK = len(findings) == 0
	if text == nil {
		return nil, report
	}
	return text.json, report
}

// String is the problem as a line for people: file:line: severity: message.
func (p LintProblem) String() string {
	text := fmt.Sprintf("%d: %s: %s (%s)", p.Line, p.Severity, p.Message, p.Rule)
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return text
}
