package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) toolsCommand() *cobra.Command {
	return group("tools", "See which tools there are, and check manifests",
		a.toolsListCommand(),
		a.toolsShowCommand(),
		a.toolsLintCommand(),
	)
}

func (a *app) toolsListCommand() *cobra.Command {
	return a.talk("list", "List the tools that this host offers", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		var tools []*macexecv1.ToolInfo
		req := &macexecv1.ListToolsRequest{}
		for {
			resp, err := c.Tools.ListTools(ctx, req)
			if err != nil {
				return beforehand(err)
			}
			tools = append(tools, resp.GetTools()...)
			for _, problem := range resp.GetProblems() {
				a.remarkf("the manifest %s is not used: %s", problem.GetFile(), problem.GetMessage())
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		table := &show.Table{Head: []string{"TOOL", "VERSION", "EFFECTS", "AVAILABLE", "TITLE"}}
		if a.format == formatWide {
			table.Head = append(table.Head, "SOURCE", "MANIFEST")
		}
		return list(a, tools, (*macexecv1.ToolInfo).GetName, table, func(t *macexecv1.ToolInfo) []show.Cell {
			row := []show.Cell{
				{Text: t.GetName()}, {Text: t.GetVersion()}, {Text: effects(t)}, available(t), {Text: t.GetTitle()},
			}
			if a.format == formatWide {
				row = append(row, show.Cell{Text: t.GetSource()}, show.Cell{Text: t.GetManifestDigest()})
			}
			return row
		})
	})
}

func effects(t *macexecv1.ToolInfo) string {
	text := document.Word(t.GetEffects())
	if t.GetDestructive() {
		text += ", destructive"
	}
	return text
}

func available(t *macexecv1.ToolInfo) show.Cell {
	if t.GetAvailable() {
		return show.Cell{Text: "yes", Style: show.Green}
	}
	text := "no"
	if len(t.GetMissing()) > 0 {
		text = "needs " + strings.Join(t.GetMissing(), ", ")
	}
	return show.Cell{Text: text, Style: show.Yellow}
}

func (a *app) toolsShowCommand() *cobra.Command {
	var version string
	cmd := a.talk("show TOOL", "Show what a tool does and takes", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
		resp, err := c.Tools.GetTool(ctx, &macexecv1.GetToolRequest{Name: args[0], Version: version})
		if err != nil {
			return beforehand(err)
		}
		tool := resp.GetTool()
		return a.print(tool, tool.GetName(), func(w io.Writer) error {
			return writeTool(w, tool, a.format == formatWide, a.OutTerminal && a.colour())
		})
	})
	cmd.Flags().StringVar(&version, "tool-version", "", "the tool's version (the newest)")
	return cmd
}

func writeTool(w io.Writer, t *macexecv1.ToolInfo, wide, colour bool) error {
	var f fields
	f.add("tool", t.GetName()+" "+t.GetVersion())
	f.add("title", t.GetTitle())
	f.add("effects", effects(t))
	f.add("purposes", strings.Join(t.GetPurposes(), ", "))
	f.add("needs", strings.Join(t.GetNeeds(), ", "))
	f.add("available", available(t).Text)
	f.add("source", t.GetSource())
	for _, p := range t.GetPrograms() {
		f.add("program", strings.TrimSpace(p.GetPath()+" "+p.GetVersion()))
	}
	if t.GetKeyOptional() {
		f.add("key", "optional, since it only reads")
	}
	if err := f.table.Write(w, colour); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n%s\n\n", show.Text(strings.TrimSpace(t.GetDescription()))); err != nil {
		return err
	}
	table := argumentsTable(t)
	if err := table.Write(w, colour); err != nil || !wide {
		return err
	}
	if err := writeJSON(w, "\ninput schema", t.GetInputSchema()); err != nil {
		return err
	}
	return writeJSON(w, "output schema", t.GetOutputSchema())
}

// argumentsTable lists a tool's arguments, as its schema tells them, by name with
// the required ones first.
func argumentsTable(t *macexecv1.ToolInfo) *show.Table {
	table := &show.Table{Head: []string{"ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION"}}
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	if json.Unmarshal(t.GetInputSchema(), &schema) != nil {
		return table
	}
	var names []string
	for name := range schema.Properties {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int {
		xr, yr := slices.Contains(schema.Required, x), slices.Contains(schema.Required, y)
		switch {
		case xr && !yr:
			return -1
		case yr && !xr:
			return 1
		default:
			return strings.Compare(x, y)
		}
	})
	for _, name := range names {
		var property struct {
			Type        json.RawMessage   `json:"type"`
			Enum        []json.RawMessage `json:"enum"`
			Description string            `json:"description"`
		}
		if json.Unmarshal(schema.Properties[name], &property) != nil {
			continue
		}
		required := ""
		if slices.Contains(schema.Required, name) {
			required = "yes"
		}
		table.Add(name, argumentType(t, name, property.Type, property.Enum), required, property.Description)
	}
	return table
}

func argumentType(t *macexecv1.ToolInfo, name string, kind json.RawMessage, enum []json.RawMessage) string {
	text := strings.Trim(string(kind), `"`)
	if len(enum) > 0 {
		values := bytes.Join(slices.Collect(func(yield func([]byte) bool) {
			for _, v := range enum {
				if !yield(bytes.Trim(v, `"`)) {
					return
				}
			}
		}), []byte("|"))
		text = string(values)
	}
	for _, f := range t.GetFileArguments() {
		if f.GetName() == name {
			text = document.Word(f.GetRole()) + " file"
			if len(f.GetKinds()) > 0 {
				text += " (" + strings.Join(f.GetKinds(), ", ") + ")"
			}
		}
	}
	if slices.Contains(t.GetSecretArguments(), name) {
		text += ", secret"
	}
	return text
}
