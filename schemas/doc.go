// Package schemas says what is well formed. It holds the manifests of the
// shipped tools and the JSON Schemas of every document that macexec stores or
// exchanges, and the code that applies them:
//
//   - Parse gives the syntax verdict: one strict reading of the raw bytes;
//   - Fingerprint turns a call into the digest that its key belongs to;
//   - Open loads, checks and compiles manifests into a Registry of Tools;
//   - Tool.Validate gives the schema verdict, Tool.Check the manifest's part of
//     the business verdict, and the other methods of Tool and Variant evaluate
//     the manifest's expressions when a job is staged, run and verified;
//   - Lint tells the author of a manifest what is wrong with it;
//   - Document checks macexec's own JSON documents.
//
// It runs no program, opens no file but manifests, fetches nothing, and imports
// nothing of ours: what a verdict leads to is decided in package jobs/engine.
package schemas
