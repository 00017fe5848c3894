package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/macexec/macexec/client"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func (a *app) hostCommand() *cobra.Command {
	return group("host", "Look at the host, and let it pause, drain and go on",
		a.talk("show", "Show what the host is and what it does now", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
			resp, err := c.Host.GetHost(ctx, &macexecv1.GetHostRequest{})
			if err != nil {
				return beforehand(err)
			}
			host := resp.GetHost()
			return a.print(host, host.GetId(), func(w io.Writer) error { return writeHost(w, host, a.OutTerminal && a.colour()) })
		}),
		a.hostModeCommand("pause", "Take calls and let them wait; what runs goes on", pauseHelp, macexecv1.HostMode_HOST_MODE_PAUSED),
		a.hostModeCommand("drain", "Refuse new calls, and run what was accepted to its end", drainHelp, macexecv1.HostMode_HOST_MODE_DRAINING),
		a.hostModeCommand("resume", "Take calls and start jobs again", resumeHelp, macexecv1.HostMode_HOST_MODE_OPEN))
}

func writeHost(w io.Writer, h *macexecv1.HostInfo, colour bool) error {
	var f fields
	f.add("host", h.GetId())
	f.add("name", h.GetHostname())
	f.add("system", strings.TrimSpace(h.GetOs()+" "+h.GetOsVersion()+" "+h.GetArch()))
	f.add("hardware", fmt.Sprintf("%d processors, %s memory, %s free on disk", h.GetCpus(), show.Size(h.GetMemoryBytes()), show.Size(h.GetDiskFreeBytes())))
	f.add("macexec", h.GetVersion())
	f.add("state folder", h.GetStatePath())
	f.add("started", moment(h.GetStartedAt()))
	addMode(&f, h)
	switch {
	case h.GetAccepting():
		f.addStyled("new calls", "taken", show.Green)
	case h.GetMode() != macexecv1.HostMode_HOST_MODE_DRAINING:
		f.addStyled("new calls", "not taken: the disk is full; macexec store df tells what takes the room", show.Red)
	default:
		f.addStyled("new calls", "not taken", show.Yellow)
	}
	f.add("confinement", h.GetConfinement())
	f.add("jobs", hostJobs(h))
	for _, slot := range h.GetSlots() {
		f.add("slot "+slot.GetClass(), fmt.Sprintf("%d of %d used", slot.GetUsed(), slot.GetSize()))
	}
	if r := h.GetRetention(); r.GetFailing() != "" {
		f.addStyled("retention", "fails since "+moment(r.GetFailingSince())+": "+r.GetFailing(), show.Red)
	}
	f.add("tool path", strings.Join(h.GetToolPath(), ":"))
	return f.table.Write(w, colour)
}

func (a *app) whoamiCommand() *cobra.Command {
	return a.talk("whoami", "Say whom the daemon takes you for", cobra.NoArgs, func(ctx context.Context, c *client.Client, _ []string) error {
		resp, err := c.Host.WhoAmI(ctx, &macexecv1.WhoAmIRequest{})
		if err != nil {
			return beforehand(err)
		}
		who := resp.GetIdentity()
		who.Address = c.Address()
		return a.print(who, who.GetPrincipal(), func(w io.Writer) error {
			var f fields
			f.add("principal", who.GetPrincipal())
			f.add("roles", strings.Join(who.GetRoles(), ", "))
			f.add("proof", who.GetProof())
			f.add("host", who.GetHost())
			f.add("address", who.GetAddress())
			return f.table.Write(w, false)
		})
	})
}

// versionDocument is what version prints; schemas/version.schema.json.
type versionDocument struct {
	Version       string `json:"version"`
	Revision      string `json:"revision"`
	GoVersion     string `json:"go_version"`
	OS            string `json:"os"`
	Arch          string `json:"arch"`
	DaemonVersion string `json:"daemon_version"`
}

// buildVersion is what this binary knows about itself.
func buildVersion() versionDocument {
	v := versionDocument{Version: "devel", GoVersion: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			v.Revision = setting.Value
		}
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	return command("version", "Print the version of this program and of the daemon", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		v := buildVersion()
		v.DaemonVersion = a.daemonVersion(cmd.Context())
		switch {
		case a.format == formatJSON:
			return a.printValue(v)
		case a.quiet:
			return a.printLine(v.Version)
		}
		var f fields
		f.add("macexec", strings.TrimSpace(v.Version+" "+v.Revision))
		f.add("built with", v.GoVersion+" for "+v.OS+"/"+v.Arch)
		f.add("daemon", orElse(v.DaemonVersion, "not reached"))
		return f.table.Write(a.Out, a.OutTerminal && a.colour())
	})
}

// daemonVersion asks the daemon; it is "" when there is none.
func (a *app) daemonVersion(ctx context.Context) string {
	c, err := a.connect()
	if err != nil {
		return ""
	}
	defer c.Close() //nolint:errcheck // the answer is there
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := c.Host.GetHost(ctx, &macexecv1.GetHostRequest{})
	if err != nil {
		return ""
	}
	return resp.GetHost().GetVersion()
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
