// Package telemetry tells the outside what macexec does: Metrics counts it, Traces
// follows single calls through it, and Logs writes a line for each job. Each is an
// engine.Observer; Join makes one of several.
//
// Nothing in here decides anything or holds anything up: what cannot be told in time
// is dropped and counted. Labels come from closed lists (states, codes, methods) or
// from the tools that a host has, never from what a caller writes. No argument of a
// call, no key and no name of a principal is in any metric or span.
package telemetry
