// Package macexecv1 is the API of macexec as generated from the .proto files
// beside it: services, messages, enums and the one shape of an error. The .proto
// files are the contract and carry its comments; nothing is written here by hand.
//
// What a field means to the domain is told in package jobs; how a message becomes
// a JSON document, in package document.
package macexecv1
