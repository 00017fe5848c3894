package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretKeyIsMadeOnceAndMissed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, storePath := filepath.Join(dir, "secret.key"), filepath.Join(dir, "store.db")
	key, err := secretKey(path, storePath)
	if err != nil || len(key) != secretKeySize {
		t.Fatalf("made a key of %d bytes, %v", len(key), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if err := os.WriteFile(storePath, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := secretKey(path, storePath); err != nil || !bytes.Equal(again, key) {
		t.Errorf("another key: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := secretKey(path, storePath); err == nil || !strings.Contains(err.Error(), "put it back") {
		t.Errorf("a lost key was made anew: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := secretKey(path, storePath); err == nil {
		t.Error("a damaged key was taken")
	}
}

// TestG13ALostStoreIsNotBegunAnew: with a new one every key would be free again.
func TestG13ALostStoreIsNotBegunAnew(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if err := notForgotten(state); err != nil {
		t.Errorf("a new folder: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(state, "jobs", "job"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := notForgotten(state); err == nil || !strings.Contains(err.Error(), "put store.db back") {
		t.Errorf("jobs without a store: %v", err)
	}
	if err := os.WriteFile(filepath.Join(state, "store.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := notForgotten(state); err != nil {
		t.Errorf("jobs with a store: %v", err)
	}
}
