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
//	├── journal_head     u64, 32 bytes     Seq and hash of the newest entry
//	├── journal_anchor   u64, 32 bytes     Seq and hash of the newest entry that was dropped;
//	│                                      none: nothing ever was
//	├── host_mode        JSON HostMode     the mode that was set last; none: never
//	└── restored         JSON Restore      why the store may have forgotten something, until
//	                                       somebody confirms; none: it has not
//	jobs
//	└── <job id>         u64, JSON Job     every job, behind the Seq of its newest entry
//	keys
//	└── <key place>      JSON KeyRecord    every key that was ever used or fenced
//	open
//	└── <job id>         u64 seq, text State  exactly the jobs that are not terminal
//	journal
//	└── <u64 seq>        JSON Entry        hash-chained, without holes; one that came with
//	                                       the record of a job, behind the Seq of the one
//	                                       before that did, in a u64
//	job_journal
//	└── <job id> 00 <u64 seq>  empty       the entries that name a job and did not come with
//	                                       its record
//	blobs
//	└── <hex sha256>     JSON Blob         every uploaded file
//	projects
//	└── <name>           JSON Project      every project
//	manifests
//	└── <hex sha256>     text              every manifest that jobs were accepted with
//	pins
//	└── <hex sha256> 00 <job id>  empty    the uploaded files that jobs in bucket open read
//	closed
//	└── <run place>      JSON              every run and call that was closed
//	usage
//	└── <u64 hour> <16 bytes>  JSON        what the jobs of one principal, tool and run that
//	                                       ended in that hour since 1970 cost together; the
//	                                       16 bytes are a digest of the three
//	order
//	└── <u64 seq>        i64, text         every job by its Seq, but for the newest: when it
//	                                       was accepted, in milliseconds since 1970, and its id
//	index
//	├── <u32 chunk> 00                     what bounds the jobs of a chunk (index.go)
//	└── <u32 chunk> <kind> <8 bytes>  set  the jobs of a chunk that have a value; the 8 bytes
//	                                       are of its digest
//	recent
//	└── <u64 seq>        rows              what order and index are still to get of the newest
//	                                       jobs, from that one on (recent.go)
//	tombstones
//	└── <16 bytes>       bytes             every key whose job is pruned, by the start of its
//	                                       place without the version (tombstone.go)
//	principals
//	└── <name>           empty             every principal that ever had a job
//
// A place is one version byte and the SHA-256 of namespace, principal and text, each
// with its length before it, so that no two texts share a place.
//
// JSON that can be changed or that keys hang on ends with a checksum of itself (sum.go);
// an entry has its hash for that, and a manifest its name.
//
// Writes pass through one goroutine that runs all waiting operations in one bbolt
// transaction and answers them after its commit (writer.go). Each operation first
// checks everything and then writes, so one that is refused has written nothing. What
// a commit costs is the pages that it touches, so what is written often is kept in few
// buckets: the entries of a job are found from its record, each leads to the one before.
// Reads begin only between commits, because bbolt shows a commit to readers before
// it is on stable storage (gate in store.go).
package store
