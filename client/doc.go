// Package client talks to a macexec daemon over gRPC. It adds to the generated
// clients what every caller needs and easily gets wrong: errors as one type that
// says whether the request was sent at all, submissions that are repeated under
// their key until there is an answer, streams that go on from their cursor after
// the daemon was restarted, and files whose digests are compared.
//
// A request that fails is one of three things. NotReached: nothing was ever sent, so
// nothing happened. AnswerLost: it was sent, and what became of it only a repeat can
// tell, which for a submission is safe under the same key. Anything else is the
// daemon's own answer. How long a repeat goes on is the one option there is,
// Patience.
//
// It decides nothing that the daemon decides, and prints nothing.
package client
