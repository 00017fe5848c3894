// Package policy answers one question: may this call run now? It is pure: facts
// in, decision out, no I/O, no clock, no state. It also holds the rule of who may
// decide an approval.
//
// What is asked of it and what is done with the answer lives in jobs/engine. It
// imports nothing of ours, so that a security reviewer can read it alone.
package policy
