package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) projectsCommand() *cobra.Command {
	return group("projects", "Say which folders calls may read and write",
		a.talk("list", "List the projects", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
			projects, err := projects(ctx, c)
			if err != nil {
				return err
			}
			return a.printProjects(projects)
		}),
		a.talk("add NAME FOLDER", "Give a folder a name; adding the same again changes nothing", cobra.ExactArgs(2), func(ctx context.Context, c *client.Client, args []string) error {
			root := args[1]
			if strings.HasPrefix(c.Address(), "ssh:") && !filepath.IsAbs(root) {
				return usagef("macexec projects add "+args[0]+" /the/whole/path", "the folder is one of the other machine, so %q must be an absolute path there", root)
			}
			root, err := filepath.Abs(root)
			if err != nil {
				return unreadable(err)
			}
			resp, err := c.Host.AddProject(ctx, &macexecv1.AddProjectRequest{Project: &macexecv1.Project{Name: args[0], Root: root}})
			if err != nil {
				return err
			}
			return a.printProjects([]*macexecv1.Project{resp.GetProject()})
		}),
		a.talk("remove NAME", "Take the name away; the files stay", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, args []string) error {
			all, err := projects(ctx, c)
			if err != nil {
				return err
			}
			for _, project := range all {
				if project.GetName() == args[0] {
					if _, err := c.Host.RemoveProject(ctx, &macexecv1.RemoveProjectRequest{Name: args[0]}); err != nil {
						return err
					}
					a.remarkReturn(ctx, c, project.GetName())
					return a.printProjects([]*macexecv1.Project{project})
				}
			}
			return failed(exitRefused, jobs.CodeProjectNotFound, "there is no project "+args[0], "macexec projects list")
		}),
	)
}

// remarkReturn says that a project was removed that will be there again.
func (a *app) remarkReturn(ctx context.Context, c *client.Client, name string) {
	if name == engine.DefaultProject {
		a.remarkf("the next start of the daemon makes the project %s again", name)
		return
	}
	resp, err := c.Host.GetConfig(ctx, &macexecv1.GetConfigRequest{})
	if err != nil {
		return // it is removed; only the remark is not to be had
	}
	for _, field := range resp.GetConfig().GetFields() {
		var named map[string]string
		if field.GetPointer() == "/projects" && json.Unmarshal(field.GetValue(), &named) == nil && named[name] != "" {
			a.remarkf("%s names the project %s, too: the next start of the daemon, or the next reload, adds it again", resp.GetConfig().GetPath(), name)
		}
	}
}

func projects(ctx context.Context, c *client.Client) ([]*macexecv1.Project, error) {
	var all []*macexecv1.Project
	req := &macexecv1.ListProjectsRequest{}
	for {
		resp, err := c.Host.ListProjects(ctx, req)
		if err != nil {
			return nil, beforehand(err)
		}
		all = append(all, resp.GetProjects()...)
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}

func (a *app) printProjects(projects []*macexecv1.Project) error {
	return list(a, projects, (*macexecv1.Project).GetName, &show.Table{Head: []string{"PROJECT", "FOLDER"}}, func(p *macexecv1.Project) []show.Cell {
		return []show.Cell{{Text: p.GetName()}, {Text: p.GetRoot()}}
	})
}
