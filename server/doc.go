// Package server is the gRPC face of the engine: it proves who asks, checks that
// they may, turns messages into the engine's types and back, and turns every error
// into one kind of status. It decides nothing about calls and jobs, and it is the
// only package that knows both the engine and the API.
//
// Where things are: server.go starts and stops; guard.go is what every request
// passes through; identity.go and permissions.go say who may ask what; status.go is
// the one place where errors become statuses; *_service.go are the methods, and
// convert_*.go the conversions, one file for each noun.
package server
