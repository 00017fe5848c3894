package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/macexec/macexec/cmd/macexec/internal/argument"
	"github.com/macexec/macexec/cmd/macexec/internal/show"
	"github.com/macexec/macexec/jobs"
	"github.com/macexec/macexec/proto/document"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// failure is an end that is not good: its exit code, its document, and what the
// person can do next. Without a document it has been shown already, as the state
// of a job or as what a check found, and only decides the exit code.
type failure struct {
	code     exitCode
	document *macexecv1.Error
	try      string
}

func (f *failure) Error() string {
	if f.document == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.document.GetMessage()
}

// ended is the end of a command that has shown its result.
func ended(code exitCode) error {
	if code == exitOK {
		return nil
	}
	return &failure{code: code}
}

// usagef is a command line that says something wrong.
func usagef(try, format string, args ...any) error {
	return failed(exitUsage, jobs.CodeRequestInvalid, fmt.Sprintf(format, args...), try)
}

// unreadable is a file of the caller's own machine that cannot be read.
func unreadable(err error) error {
	return failed(exitUsage, jobs.CodeRequestInvalid, err.Error(), "check the path and its permissions, then run the command again")
}

// unwritable is a result that cannot be stored on the caller's own machine.
func unwritable(err error) error {
	if f, ok := errors.AsType[*failure](err); ok {
		return f // stdout itself
	}
	return failed(exitRefused, jobs.CodeRequestInvalid, err.Error(), "choose another place for the file; the job and its artifacts are not affected")
}

func failed(code exitCode, which jobs.Code, message, try string) *failure {
	info := jobs.Codes()[which]
	class, _ := document.Enum[macexecv1.ErrorClass](string(info.Class))
	action, _ := document.Enum[macexecv1.UserAction](string(info.Action))
	return &failure{code: code, try: try, document: &macexecv1.Error{
		Class: class, Code: string(which), Message: message,
		Retryable: info.Retryable, UserAction: action,
		SideEffect: macexecv1.SideEffect_SIDE_EFFECT_NONE,
	}}
}

// explain makes the one shape of any error.
func explain(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*argument.Error](err); ok {
		return failed(exitUsage, jobs.CodeRequestInvalid, e.Message, e.Remedy)
	}
	if f := explainClient(err); f != nil {
		return f
	}
	if e, ok := errors.AsType[*jobs.Error](err); ok {
		return explainOwn(e)
	}
	if errors.Is(err, context.Canceled) {
		return failed(exitNotReached, jobs.CodeCallerGone, "interrupted before anything was accepted", "run the command again")
	}
	return failed(exitFault, jobs.CodeInternal, err.Error(), "this is a fault in macexec: please report it with the command and this message")
}

// explainOwn makes a failure of an error of this process's own rooms, when it is
// the daemon. Nothing was sent, so no answer was lost.
func explainOwn(e *jobs.Error) *failure {
	f := failed(exitRefused, e.Code, e.Message, "")
	if code := exitOfRefusal(f.document); code != exitAnswerLost {
		f.code = code
	}
	f.document.JobId, f.document.Metadata = e.JobID, e.Metadata
	return f
}

// report shows an error: its document on stdout with -o json, and on stderr what
// is wrong and what to do.
func (a *app) report(err error) {
	f := explain(err)
	if f.document == nil {
		return
	}
	f = a.namingHolder(f)
	if a.format == formatJSON {
		a.printDocument(f.document) //nolint:errcheck // the error itself is what counts
	}
	writeError(a.Err, f, a.ErrTerminal && a.colour())
}

func writeError(w io.Writer, f *failure, colour bool) {
	var b strings.Builder
	e := f.document
	b.WriteString(show.Red.Paint("Error:", colour) + " " + show.Line(e.GetMessage()))
	if f.code != exitUsage {
		b.WriteString(" (" + show.Line(e.GetCode()) + ")")
	}
	b.WriteByte('\n')
	writeVerdicts(&b, e.GetVerdicts())
	writeFindings(&b, e.GetFindings())
	if omitted := e.GetMetadata()["findings_omitted"]; omitted != "" {
		fmt.Fprintf(&b, "  … and %s more; macexec check shows them all\n", show.Line(omitted))
	}
	if d := e.GetDecision(); d != nil {
		fmt.Fprintf(&b, "  decision: %s, by rule %s: %s\n", document.Word(d.GetEffect()),
			show.Line(strings.Join(d.GetRules(), ", ")), show.Line(d.GetReason()))
	}
	if e.GetJobId() != "" {
		fmt.Fprintf(&b, "  job: %s\n", show.Line(e.GetJobId()))
	}
	for _, name := range slices.Sorted(maps.Keys(e.GetMetadata())) {
		if name != "findings_omitted" {
			fmt.Fprintf(&b, "  %s: %s\n", show.Line(name), show.Line(e.GetMetadata()[name]))
		}
	}
	try := f.try
	if try == "" {
		try = advice(e)
	}
	if try != "" {
		b.WriteString(show.Bold.Paint("Try:", colour) + " " + show.Line(try) + "\n")
	}
	io.WriteString(w, b.String()) //nolint:errcheck // there is nobody left to tell
}

func writeVerdicts(w io.Writer, v *macexecv1.Verdicts) {
	if v == nil {
		return
	}
	fmt.Fprintf(w, "  verdicts: syntax %s, schema %s, business %s\n",
		verdict(v.GetSyntaxChecked(), v.GetSyntaxValid()),
		verdict(v.GetSchemaChecked(), v.GetSchemaValid()),
		verdict(v.GetBusinessChecked(), v.GetBusinessValid()))
}

func verdict(checked, valid bool) string {
	switch {
	case !checked:
		return "not checked"
	case valid:
		return "valid"
	default:
		return "invalid"
	}
}

func writeFindings(w io.Writer, findings []*macexecv1.Finding) {
	for _, f := range findings {
		where := f.GetPointer()
		if where == "" {
			where = "the arguments"
		}
		fmt.Fprintf(w, "  %s: %s (%s)\n", show.Line(where), show.Line(f.GetMessage()), show.Line(f.GetKeyword()))
		if f.GetHint() != "" {
			fmt.Fprintf(w, "      hint: %s\n", show.Line(f.GetHint()))
		}
	}
}

// advice says what to do next about an error of the daemon.
func advice(e *macexecv1.Error) string {
	switch jobs.Code(e.GetCode()) {
	case jobs.CodeToolNotFound:
		return "macexec tools list"
	case jobs.CodeJobNotFound:
		return "macexec jobs list --all"
	case jobs.CodeProjectNotFound:
		return "macexec projects list"
	case jobs.CodeKeyRequired:
		return "give the call a key of its own: --key K"
	case jobs.CodeKeyConflict:
		if e.GetMetadata()["kind"] == string(jobs.KeyTombstone) {
			return "use another --key for this call; what is still known of this one: macexec jobs show --key " + e.GetMetadata()["key"]
		}
		if e.GetJobId() != "" {
			return "use another --key for this call, or look at the key's job: macexec jobs show " + e.GetJobId()
		}
	case jobs.CodeLockHeld:
		return "run the same command again in a while, or with --on-lock wait" + ifJob("; see who holds it: macexec jobs show ", e)
	case jobs.CodeRunClosed:
		return "the run was cancelled and stays closed: make the call in another run, with another --run-id"
	case jobs.CodeDraining:
		return "run the same command again in a while, or on another host; macexec host show tells why, macexec host resume ends it"
	default:
	}
	switch e.GetUserAction() {
	case macexecv1.UserAction_USER_ACTION_FIX_ARGUMENTS:
		return "change the arguments as the hints say and call again; macexec check TOOL … tries without running"
	case macexecv1.UserAction_USER_ACTION_FIX_REQUEST:
		return "correct the command; --help shows its flags"
	case macexecv1.UserAction_USER_ACTION_USE_NEW_KEY:
		return "use a new --key for a new call"
	case macexecv1.UserAction_USER_ACTION_REPEAT_SAME_KEY:
		return "run the same command again with the same --key: it starts nothing twice"
	case macexecv1.UserAction_USER_ACTION_RETRY_LATER:
		return "run the same command again in a while"
	case macexecv1.UserAction_USER_ACTION_ASK_APPROVER:
		return "ask somebody who may approve: macexec jobs approve " + e.GetJobId()
	case macexecv1.UserAction_USER_ACTION_ASK_OPERATOR:
		return "ask the person who runs this host"
	case macexecv1.UserAction_USER_ACTION_INSPECT_JOB:
		return "macexec jobs show " + e.GetJobId()
	case macexecv1.UserAction_USER_ACTION_RESOLVE_JOB:
		return "macexec jobs resolve " + e.GetJobId() + " --as STATE --reason TEXT"
	default:
		return ""
	}
}

// ifJob is words followed by the job of an error, if it names one.
func ifJob(words string, e *macexecv1.Error) string {
	if e.GetJobId() == "" {
		return ""
	}
	return words + e.GetJobId()
}
