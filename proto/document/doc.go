// Package document writes messages of the API as the JSON documents that the
// command line prints and that schemas/*.schema.json describe, and turns enum
// values into the words of those documents and back.
//
// It knows nothing of single messages but which of their bytes hold JSON text:
// everything is read from the descriptors, so a new field needs no new code here.
package document
