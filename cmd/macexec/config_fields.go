package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/macexec/macexec/schemas"
)

// configField is one thing that config.yaml may say, as its schema describes it.
type configField struct {
	pointer  string
	standard json.RawMessage // the default; nil if it depends on the host, or there is none
	reloads  bool            // a change is in force after a reload; otherwise after a restart
}

// configSchema is the schema of config.yaml, and its fields by their pointers.
func configSchema() (*schemas.DocumentSchema, []configField, error) {
	schema, ok := schemas.Document("config")
	if !ok {
		return nil, nil, errors.New("this build has no schema for its configuration")
	}
	var node schemaNode
	if err := json.Unmarshal(schema.Text(), &node); err != nil {
		return nil, nil, err
	}
	return schema, node.fields(""), nil
}

// schemaNode is what matters here of a schema.
type schemaNode struct {
	Properties map[string]schemaNode `json:"properties"`
	Default    json.RawMessage       `json:"default"`
	Macexec    struct {
		Reload bool `json:"reload"`
	} `json:"x-macexec"` //nolint:tagliatelle // a keyword of schemas
}

// fields are the nodes without properties. A map whose names the operator chooses is
// one field.
func (n schemaNode) fields(pointer string) []configField {
	if len(n.Properties) == 0 {
		return []configField{{pointer: pointer, standard: oneForm(n.Default), reloads: n.Macexec.Reload}}
	}
	var list []configField
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		list = append(list, n.Properties[name].fields(pointer+"/"+name)...)
	}
	return list
}

// given is what the file says about a field, in one form; nil if it does not.
func (c config) given(pointer string) json.RawMessage {
	at := c.text
	for name := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		var object map[string]json.RawMessage
		if json.Unmarshal(at, &object) != nil {
			return nil
		}
		at = object[name]
	}
	return oneForm(at)
}

// oneForm sorts the names of an object, so that the same value is the same text.
func oneForm(text json.RawMessage) json.RawMessage {
	if text == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return text
	}
	sorted, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return sorted
}
