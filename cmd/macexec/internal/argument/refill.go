package argument

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Hidden returns the names of the arguments of a stored call whose values are kept
// secret: marker stands for them. They are top-level members always.
func Hidden(arguments []byte, marker string) []string {
	var members map[string]json.RawMessage
	if json.Unmarshal(arguments, &members) != nil {
		return nil
	}
	var names []string
	for name, value := range members {
		var mark map[string]bool
		if json.Unmarshal(value, &mark) == nil && len(mark) == 1 && mark[marker] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Refill returns the arguments of a stored call with the hidden values given again.
// Everything else stays as it is written, numbers with their digits. Exactly the
// hidden arguments have to be given.
func (s Schema) Refill(arguments []byte, hidden []string, settings []Setting, env func(string) (string, bool)) ([]byte, error) {
	given := map[string]string{}
	for _, set := range settings {
		if !slices.Contains(hidden, set.Name) {
			return nil, &Error{
				fmt.Sprintf("the argument %q is not secret, and to run a job again is to make the same call", set.Name),
				"leave it out; for other arguments, macexec call --supersedes JOB makes a call that follows the job",
			}
		}
		if _, twice := given[set.Name]; twice {
			return nil, &Error{fmt.Sprintf("the argument %q is given twice", set.Name), "give each name once"}
		}
		value, err := s.value(set, env)
		if err != nil {
			return nil, err
		}
		given[set.Name] = value
	}
	missing := slices.DeleteFunc(slices.Clone(hidden), func(name string) bool { _, ok := given[name]; return ok })
	if len(missing) > 0 {
		return nil, &Error{
			"the job's secrets cannot be sent again, since nobody is given them: " + strings.Join(missing, ", "),
			fmt.Sprintf("give each again, such as -a %s=@env:NAME", missing[0]),
		}
	}
	if len(hidden) == 0 {
		return arguments, nil
	}
	return replaceMembers(arguments, given)
}

// replaceMembers writes an object again with other values for some of its members.
func replaceMembers(object []byte, values map[string]string) ([]byte, error) {
	in := json.NewDecoder(bytes.NewReader(object))
	if _, err := in.Token(); err != nil {
		return nil, err
	}
	out := []byte{'{'}
	for first := true; in.More(); first = false {
		token, err := in.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, err
		}
		if !first {
			out = append(out, ", "...)
		}
		name, _ := token.(string) // it is an object: Hidden has read it
		out = append(append(out, quote(name)...), ": "...)
		if given, ok := values[name]; ok {
			value = json.RawMessage(given)
		}
		out = append(out, value...)
	}
	return append(out, '}'), nil
}
