package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// What the shell may offer where a flag or an argument is typed. Most of it needs no
// daemon; where it does, a daemon that is not there offers nothing and says nothing.

// words lets a flag be one of some words.
func words(cmd *cobra.Command, flag string, list []string) {
	complete(cmd, flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp))
}

// nothing lets flags be what only the caller can know; without it the shell offers
// file names.
func nothing(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		complete(cmd, flag, cobra.NoFileCompletions)
	}
}

// folders lets a flag be a folder.
func folders(cmd *cobra.Command, flag string) {
	complete(cmd, flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	})
}

func complete(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // there is no such flag, or it was said twice: a test walks all commands
	}
}

// patienceOfShells is how long a shell waits for what it might offer.
const patienceOfShells = 2 * time.Second

// completeTools offers the names of the installed tools, with their titles.
func (a *app) completeTools(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []cobra.Completion
	if len(args) == 0 {
		a.ask(cmd, func(ctx context.Context, c *client.Client) error {
			resp, err := c.Tools.ListTools(ctx, &macexecv1.ListToolsRequest{PageSize: 1000})
			for _, tool := range resp.GetTools() {
				if strings.HasPrefix(tool.GetName(), typed) {
					offers = append(offers, cobra.CompletionWithDesc(tool.GetName(), tool.GetTitle()))
				}
			}
			return err
		})
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

// completeJobs offers the newest jobs in some states, with state and tool; without
// states those in any.
func (a *app) completeJobs(states ...macexecv1.JobState) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var offers []cobra.Completion
		a.ask(cmd, func(ctx context.Context, c *client.Client) error {
			resp, err := c.Jobs.ListJobs(ctx, &macexecv1.ListJobsRequest{States: states})
			for _, job := range resp.GetJobs() {
				if strings.HasPrefix(job.GetId(), typed) {
					offers = append(offers, cobra.CompletionWithDesc(job.GetId(), stateText(job)+" "+job.GetTool().GetName()))
				}
			}
			return err
		})
		return offers, cobra.ShellCompDirectiveNoFileComp
	}
}

// one offers something for the first argument only.
func one(offer cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, args, typed)
	}
}

// ask makes one request for the sake of a shell.
func (a *app) ask(cmd *cobra.Command, request func(ctx context.Context, c *client.Client) error) {
	c, err := a.connect()
	if err != nil {
		return
	}
	defer c.Close() //nolint:errcheck // the answer is there
	ctx, cancel := context.WithTimeout(cmd.Context(), patienceOfShells)
	defer cancel()
	_ = request(ctx, c)
}
