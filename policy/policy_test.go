package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/macexec/macexec/policy"
)

func TestDefaultDecisions(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		call policy.Call
		want policy.Effect
		rule string
	}{
		{"reads", policy.Call{Effects: "none"}, policy.Allow, "default/none"},
		{"stages", policy.Call{Effects: "staged"}, policy.Allow, "default/staged"},
		{"replaces", policy.Call{Effects: "staged", Replaces: true}, policy.RequireApproval, "default/replaces"},
		{"removes", policy.Call{Effects: "staged", Removes: true}, policy.RequireApproval, "default/removes"},
		{"destructive", policy.Call{Effects: "staged", Destructive: true}, policy.RequireApproval, "default/destructive"},
		{"external", policy.Call{Effects: "external"}, policy.RequireApproval, "default/external"},
		{"says nothing", policy.Call{}, policy.Deny, "default/unknown_effects"},
		{"not visible", policy.Call{Tool: "a", Effects: "none", VisibleTools: []string{"b"}}, policy.Deny, "default/not_visible"},
		{"visible", policy.Call{Tool: "b", Effects: "none", VisibleTools: []string{"b"}}, policy.Allow, "default/none"},
		{"deny beats approval", policy.Call{Tool: "a", Effects: "external", VisibleTools: []string{"b"}}, policy.Deny, "default/not_visible"},
	}
	p := policy.Default()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := p.Decide(c.call)
			if got.Effect != c.want || got.Rules[0] != c.rule || got.Reason == "" {
				t.Errorf("got %+v, want %s by %s", got, c.want, c.rule)
			}
		})
	}
}

func TestEveryMatchingRuleIsNamed(t *testing.T) {
	t.Parallel()
	got := policy.Default().Decide(policy.Call{Effects: "staged", Destructive: true, Removes: true})
	want := []string{"default/destructive", "default/removes", "default/staged"}
	if diff := cmp.Diff(want, got.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestStricterWalksEveryPair(t *testing.T) {
	t.Parallel()
	order := []policy.Effect{policy.Allow, policy.RequireApproval, policy.Deny}
	for i, then := range order {
		for j, now := range order {
			if got := policy.Stricter(then, now); got != (j > i) {
				t.Errorf("Stricter(%s, %s) = %v", then, now, got)
			}
		}
	}
}

func TestDecidingNeedsAName(t *testing.T) {
	t.Parallel()
	p := policy.Default()
	if ok, why := p.MayDecide("a", ""); ok || why == "" {
		t.Errorf("an unnamed approver may decide (%q)", why)
	}
	if ok, _ := p.MayDecide("a", "a"); !ok {
		t.Error("the only user of a default set-up cannot approve")
	}
}

func TestVersionIsStable(t *testing.T) {
	t.Parallel()
	if a, b := policy.Default().Version(), policy.Default().Version(); a != b || len(a) != 64 {
		t.Errorf("versions %q and %q", a, b)
	}
}
