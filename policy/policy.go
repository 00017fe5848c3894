package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Effect is the answer.
type Effect string

// The answers. Deny beats RequireApproval beats Allow.
const (
	Allow           Effect = "allow"
	Deny            Effect = "deny"
	RequireApproval Effect = "require_approval"
)

func (e Effect) rank() int {
	switch e {
	case Allow:
		return 1
	case RequireApproval:
		return 2
	default:
		return 3
	}
}

// Call is everything a decision may depend on.
type Call struct {
	Principal   string
	Tool        string
	Version     string
	Purpose     string
	Effects     string // none, staged or external; anything else is denied
	Destructive bool   // the manifest says that it may destroy
	Replaces    bool   // its publish plan would replace an existing file
	Removes     bool   // its publish plan removes a file
	// VisibleTools are the tools that the call's own context says were visible to
	// the model; empty when it says nothing.
	VisibleTools []string
}

// Decision is the answer and why. Rules are the names of all rules that matched,
// the deciding one first.
type Decision struct {
	Effect Effect
	Rules  []string
	Reason string
}

// Policy is an immutable set of rules, safe for concurrent use.
type Policy struct {
	rules        []rule
	selfApproval bool
	version      string
}

type rule struct {
	name    string
	effect  Effect
	reason  string
	matches func(Call) bool
}

// Default is the policy of a host without a policy file: reading and staging are
// allowed; replacing, removing, destroying and acting outside need a person. The
// requester may be that person, since a default set-up has one user.
func Default() *Policy {
	rules := []rule{
		{
			"default/unknown_effects", Deny, "the tool does not state what it touches",
			func(c Call) bool { return c.Effects != "none" && c.Effects != "staged" && c.Effects != "external" },
		},
		{
			"default/not_visible", Deny, "the call's own context says that the model could not see this tool",
			func(c Call) bool { return len(c.VisibleTools) > 0 && !slices.Contains(c.VisibleTools, c.Tool) },
		},
		{
			"default/destructive", RequireApproval, "the tool may destroy what is there",
			func(c Call) bool { return c.Destructive },
		},
		{
			"default/removes", RequireApproval, "the call removes a file",
			func(c Call) bool { return c.Removes },
		},
		{
			"default/replaces", RequireApproval, "the call replaces an existing file",
			func(c Call) bool { return c.Replaces },
		},
		{
			"default/external", RequireApproval, "the tool acts outside of what macexec can check or undo",
			func(c Call) bool { return c.Effects == "external" },
		},
		{
			"default/staged", Allow, "the tool writes only files that macexec publishes",
			func(c Call) bool { return c.Effects == "staged" },
		},
		{
			"default/none", Allow, "the tool only reads",
			func(c Call) bool { return c.Effects == "none" },
		},
	}
	p := &Policy{rules: rules, selfApproval: true}
	p.version = p.digest()
	return p
}

// digest covers what the rules are called, say and answer. It changes whenever
// the shipped defaults do, so that a decision can be traced to them.
func (p *Policy) digest() string {
	type line struct {
		Name   string `json:"name"`
		Reason string `json:"reason"`
		Effect Effect `json:"effect"`
	}
	lines := make([]line, 0, len(p.rules))
	for _, r := range p.rules {
		lines = append(lines, line{r.name, r.reason, r.effect})
	}
	text, err := json.Marshal(struct {
		Rules        []line `json:"rules"`
		SelfApproval bool   `json:"self_approval"`
	}{lines, p.selfApproval})
	if err != nil {
		panic("policy: a list of strings does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Version is the hex SHA-256 of the rules.
func (p *Policy) Version() string { return p.version }

// Decide answers a call. No matching rule means Deny.
func (p *Policy) Decide(c Call) Decision {
	decision := Decision{Effect: Deny, Reason: "no rule allows it"}
	best := 0
	for _, r := range p.rules {
		if !r.matches(c) {
			continue
		}
		if r.effect.rank() > best {
			best = r.effect.rank()
			decision.Effect, decision.Reason = r.effect, r.reason
			decision.Rules = append([]string{r.name}, decision.Rules...)
			continue
		}
		decision.Rules = append(decision.Rules, r.name)
	}
	return decision
}

// Stricter reports whether now is a stricter answer than then, so that what then
// allowed may not go on.
func Stricter(then, now Effect) bool {
	return now.rank() > then.rank()
}

// MayDecide says whether approver may decide what requester asked for, and why
// not.
func (p *Policy) MayDecide(requester, approver string) (bool, string) {
	switch {
	case approver == "":
		return false, "an approval needs a named person"
	case approver == requester && !p.selfApproval:
		return false, "the policy does not let a requester approve their own call"
	default:
		return true, ""
	}
}
