package house_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOneWordPerThing refuses words that other systems use for what macexec has a
// word for. A text about another system's thing says so by quoting its name as code.
func TestOneWordPerThing(t *testing.T) {
	t.Parallel()
	instead := map[string]string{
		"shim":       "keeper",
		"supervisor": "keeper",
		"audit log":  "journal",
		"audit-log":  "journal",
		"audit_log":  "journal",
		"tenant":     "principal",
		"workspace":  "project",
		"whitelist":  "allow-list",
		"blacklist":  "deny-list",
	}
	var alternatives []string
	for word := range instead {
		alternatives = append(alternatives, word)
	}
	slices.Sort(alternatives)
	other := regexp.MustCompile(`(?i)\b(` + strings.Join(alternatives, "|") + `)s?\b`)
	quoted := regexp.MustCompile("`[^`\n]*`")
	kinds := []string{".go", ".md", ".proto", ".yaml", ".json"}
	err := walk(func(name string, data []byte) error {
		if !slices.Contains(kinds, path.Ext(name)) || name == "internal/house/words_test.go" {
			return nil
		}
		for i, line := range strings.Split(string(data), "\n") {
			if path.Ext(name) == ".md" {
				line = quoted.ReplaceAllString(line, "")
			}
			if m := other.FindStringSubmatch(line); m != nil {
				t.Errorf("%s:%d: %q; the word here is %q", name, i+1, m[1], instead[strings.ToLower(m[1])])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
