// Package store keeps every record of macexec in one bbolt file, and is the only
// package that knows bbolt: neither its types nor its errors leave. It implements
// jobs.Store. It decides nothing about jobs; it holds what package jobs promises
// about records: one write per decision, durable before it is answered, a journal
// without holes, and a damaged record that stops nothing else.
//
// The buckets, with the types of their keys and values. Every bucket is at the top
// level. Text is UTF-8, u64 is eight bytes big-endian, JSON is the named type of
// package jobs.
//
//	meta
//	├── schema_version   u64               the version of this tree
//	├── host_id          text              8 characters of a-z and 2-7, made once
//	├── created_at       text              RFC 3339
//	├── job_seq          u64               Seq of the newest job
//	└── journal_head     u64, 32 bytes     Seq and hash of the newest entry
//	jobs
//	└── <job id>         JSON Job          every job
//	keys
//	└── <key place>      JSON KeyRecord    every key that was ever used or fenced
//	open
//	└── <job id>         empty             exactly the jobs that are not terminal
//	journal
//	└── <u64 seq>        JSON Entry        hash-chained, without holes
//	job_journal
//	└── <job id> 00 <u64 seq>  empty       the entries that name a job
//	blobs
//	└── <hex sha256>     JSON Blob         every uploaded file
//	projects
//	└── <name>           JSON Project      every project
//	manifests
//	└── <hex sha256>     text              every manifest that jobs were accepted with
//
// A key place is one version byte and the SHA-256 of namespace, principal and key
// text, each with its length before it, so that no two keys share a place.
//
// Writes pass through one goroutine that runs all waiting operations in one bbolt
// transaction and answers them after its commit (writer.go). Each operation first
// checks everything and then writes, so one that is refused has written nothing.
// Reads begin only between commits, because bbolt shows a commit to readers before
// it is on stable storage (gate in store.go).
package store
