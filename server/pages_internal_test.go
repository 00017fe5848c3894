package server

import (
	"testing"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// FuzzPageToken: a foreign token is refused or means one element, and what this
// server gave is read back as it was.
func FuzzPageToken(f *testing.F) {
	for _, seed := range []string{"", "djE6Sg", "nonsense", "djE6", "dg==", pageToken("01J-abc"), "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		size, after, err := readPage(&macexecv1.ListJobsRequest{PageToken: token})
		switch {
		case err != nil:
			return
		case size != defaultPage:
			t.Errorf("size %d", size)
		case (after == "") != (token == ""):
			t.Errorf("the token %q means %q", token, after)
		}
		if _, again, err := readPage(&macexecv1.ListJobsRequest{PageToken: pageToken(after)}); err != nil || again != after {
			t.Errorf("%q became %q, %v", after, again, err)
		}
	})
}
