package server

import (
	"cmp"
	"slices"

	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func convertHost(h engine.HostInfo) *macexecv1.HostInfo {
	return &macexecv1.HostInfo{
		Id: h.ID, Hostname: h.Hostname, Os: h.OS, OsVersion: h.OSVersion, Arch: h.Arch, BootSession: h.BootSession,
		Version: h.Version, StatePath: h.StatePath, Cpus: int32of(h.CPUs), MemoryBytes: h.MemoryBytes,
		DiskFreeBytes: h.DiskFreeBytes, StartedAt: timestamp(h.StartedAt), Accepting: h.Accepting, Confinement: h.Confinement,
		Running: int32of(h.Running), Queued: int32of(h.Queued), AwaitingApproval: int32of(h.AwaitingApproval),
		Unknown: int32of(h.Unknown), ToolPath: slices.Clone(h.ToolPath),
		Mode: enum[macexecv1.HostMode](cmp.Or(h.Mode.Mode, jobs.ModeOpen)), ModeBy: h.Mode.By, ModeReason: h.Mode.Reason, ModeSince: timestamp(h.Mode.Since), Restored: convertRestore(h.Restored),
		Retention: convertRetention(h.Retention),
		Slots: each(h.Slots, func(s engine.Slot) *macexecv1.Slot {
			return &macexecv1.Slot{Class: s.Class, Size: int32of(s.Size), Used: int32of(s.Used)}
		}),
	}
}

func convertProject(p jobs.Project) *macexecv1.Project {
	return &macexecv1.Project{Name: p.Name, Root: p.Root}
}

func convertFile(f engine.FileInfo) *macexecv1.FileInfo {
	return &macexecv1.FileInfo{Reference: f.Reference, Sha256: f.SHA256, Size: f.Size, MediaType: f.MediaType, Name: f.Name, Folder: f.Folder, TransferSize: f.Transfer}
}
