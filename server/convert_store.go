package server

import (
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/jobs/engine"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

func convertUse(u engine.StoreUse) *macexecv1.StoreUse {
	out := &macexecv1.StoreUse{
		Size: u.Size, Free: u.Free, JournalOldest: u.Oldest, JournalHead: u.Head, Tombstones: u.Tombstones,
		JobFolders: u.JobFolders, JobBytes: u.JobBytes, Uploads: u.Blobs, UploadBytes: u.BlobBytes,
		Parts: each(u.Buckets, func(b jobs.BucketDescription) *macexecv1.StorePart {
			return &macexecv1.StorePart{Name: b.Name, Rows: b.Rows, Bytes: b.Bytes}
		}),
		Trash: each(u.Trash, func(t engine.TrashUse) *macexecv1.TrashUse {
			return &macexecv1.TrashUse{Project: t.Project, Count: t.Count, Bytes: t.Bytes, Problem: t.Problem}
		}),
	}
	for _, state := range jobs.States() {
		out.Jobs = append(out.Jobs, &macexecv1.StoreCount{State: enum[macexecv1.JobState](state), Count: int64(u.Jobs[state])})
	}
	return out
}

func convertPruned(p engine.Pruned) *macexecv1.Pruned {
	return &macexecv1.Pruned{
		Jobs: int64(p.Jobs), JournalEntries: int64(p.Entries), Folders: int64(p.Folders), Bytes: p.Bytes,
		Trash: int64(p.Trash), TrashBytes: p.TrashBytes, Manifests: int64(p.Manifests), Keepers: int64(p.Keepers), UnusedBytes: p.UnusedBytes,
	}
}

func convertRetention(s engine.RetentionStatus) *macexecv1.RetentionStatus {
	return &macexecv1.RetentionStatus{
		LastPass: timestamp(s.LastPass), Failing: s.Failing, FailingSince: timestamp(s.FailingSince), Failures: s.Failures, Removed: convertPruned(s.Removed),
	}
}
