package client_test

import (
	"testing"

	"github.com/macexec/macexec/client"
	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
)

// A text that no message can carry is refused before anything is sent, and the error
// says which.
func TestTextsThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	c := start(t, &daemon{}, long)
	for field, request := range map[string]func(c *client.Client) error{
		"idempotency_key": func(c *client.Client) error {
			_, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{IdempotencyKey: "k\xff", Tool: "x"})
			return err
		},
		"context.run_id": func(c *client.Client) error {
			_, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{Context: &macexecv1.CallContext{RunId: "\xff"}})
			return err
		},
		"context.labels": func(c *client.Client) error {
			_, err := c.Submit(t.Context(), &macexecv1.SubmitJobRequest{Context: &macexecv1.CallContext{Labels: map[string]string{"k": "\xff"}}})
			return err
		},
		"run_id": func(c *client.Client) error {
			return c.Watch(t.Context(), &macexecv1.WatchJobsRequest{RunId: "\xff"}, func(*macexecv1.Event) error { return nil })
		},
	} {
		if e := failure(t, request(c)); e.Code() != "REQUEST_INVALID" || e.Detail.GetMetadata()["field"] != field {
			t.Errorf("%s: %v", field, e)
		}
	}
}
