// Package keeper is the small process that holds one attempt: it starts the
// tool, outlives the daemon, and writes down how the tool ended.
//
// One binary plays two parts. "hold DIR" is the keeper: it owns the attempt's
// lock, writes the started and exit records, drains the tool's output into the
// log, enforces the time limit and ends the whole tree of processes. "launch"
// is the launcher: it becomes the tool after it has put limits and confinement
// on itself.
//
// Here live also the attempt's folder layout, its records, the log's frames and
// the proof of a process's identity, because the daemon must read exactly what
// the keeper wrote. Nothing here may know what a job is, and imports stay few:
// every start of a tool pays for them twice.
package keeper
