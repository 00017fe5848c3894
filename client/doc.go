// Package client talks to a macexec daemon over gRPC. It adds to the generated
// clients what every caller needs and easily gets wrong: errors as one type that
// says whether the request was sent at all, submissions that are repeated under
// their key until there is an answer, streams that go on from their cursor after
// the daemon was restarted, and files whose digests are compared.
//
// It decides nothing that the daemon decides, and prints nothing.
package client
