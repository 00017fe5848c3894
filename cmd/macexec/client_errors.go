package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// explainClient makes a failure of what package client returns, or nil.
func explainClient(err error) *failure {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return nil
	}
	f := &failure{code: exitOfRefusal(e.Detail), document: e.Detail}
	switch {
	case errors.Is(err, context.Canceled) && e.NotReached():
		f.try = "run the command again"
	case e.NotReached() && strings.HasPrefix(e.Detail.GetMetadata()["address"], "ssh:"):
		f.try = "mend what the message says; docs/remote.md tells what an ssh:// address needs on both sides"
	case e.NotReached():
		f.try = "start the daemon (macexec serve), or say where it is: --address or --state"
	case e.AnswerLost():
		f.try = "macexec jobs list shows what there is"
	}
	return f
}

// submitError says with the error of a submission how to repeat it.
func submitError(err error, key string) error {
	f := explain(err)
	if f.code == exitAnswerLost {
		f.try = "run the same command again with --key " + key + ": it starts nothing twice"
	}
	return f
}

// withIDs puts a call's own ids into the document of its error (promise G14).
func withIDs(err error, key string, ids *macexecv1.CallContext) error {
	f := explain(err)
	if f.document == nil {
		return f
	}
	document := proto.CloneOf(f.document)
	document.Key, document.ToolCallId = key, ids.GetToolCallId()
	document.RunId, document.TraceId = ids.GetRunId(), ids.GetTraceId()
	return &failure{code: f.code, document: document, try: f.try}
}

// beforehand is an error of a request that only reads or prepares: when its answer
// is lost, nothing was accepted.
func beforehand(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return unreadable(err)
	}
	f := explain(err)
	if f.code == exitAnswerLost {
		return &failure{code: exitNotReached, document: f.document, try: "run the command again; it changed nothing"}
	}
	return f
}

// incoming is an error of a download: the daemon's, or one of the place where the
// file should go.
func incoming(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*client.Error](err); ok {
		return beforehand(err)
	}
	return unwritable(err)
}

// jobGoesOn is what is said when a wait ends before its job.
func jobGoesOn(id string) string {
	return "job " + id + " goes on. Follow it: macexec jobs wait " + id + "; cancel it: macexec jobs cancel " + id
}
