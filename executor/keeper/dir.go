package keeper

import "path/filepath"

// Dir is the folder of one attempt. It has two halves: keeper/ holds the
// records, which the tool cannot reach; work/ is the tool's own.
type Dir string

// Keeper is the folder of the records.
func (d Dir) Keeper() string { return filepath.Join(string(d), "keeper") }

// Lock is the file whose flock says that somebody holds the attempt. Its text
// names the keeper, once there is one that listens to signals.
func (d Dir) Lock() string { return d.record("lock") }

// Fenced is the record after which no keeper may start the tool.
func (d Dir) Fenced() string { return d.record("fenced") }

// StopRequest is the record of a request to stop.
func (d Dir) StopRequest() string { return d.record("stop") }

// Started is the record that precedes the tool's first instruction.
func (d Dir) Started() string { return d.record("started") }

// Exit is the record of the end.
func (d Dir) Exit() string { return d.record("exit") }

// Log is the framed log of the tool's output.
func (d Dir) Log() string { return d.record("log") }

// Stdout is the tool's captured standard output, if that was asked for.
func (d Dir) Stdout() string { return d.record("stdout") }

// Errors is where the keeper's own complaints go.
func (d Dir) Errors() string { return d.record("keeper.err") }

// Reserve is the room kept on the disk for the exit record.
func (d Dir) Reserve() string { return d.record("reserve") }

// Work is the tool's own folder.
func (d Dir) Work() string { return filepath.Join(string(d), "work") }

// In is where staged inputs lie.
func (d Dir) In() string { return filepath.Join(d.Work(), "in") }

// Out is where the tool leaves its outputs.
func (d Dir) Out() string { return filepath.Join(d.Work(), "out") }

// Tmp is the tool's temporary folder.
func (d Dir) Tmp() string { return filepath.Join(d.Work(), "tmp") }

func (d Dir) record(name string) string { return filepath.Join(string(d), "keeper", name) }
