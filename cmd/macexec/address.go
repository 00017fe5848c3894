package main

import (
	"os"
	"path/filepath"
)

// places says where daemons live on this kind of machine; see places_*.go.
type places struct {
	systemSocket string // of the daemon that serves every user
	userState    string // the state folder of this user's own daemon
}

const (
	socketName = "macexec.sock" // in the state folder
	configName = "config.yaml"  // there, too
	unixScheme = "unix:"
)

// resolveAddress says where the daemon is: --address, else MACEXEC_ADDRESS, else the
// socket of --state or MACEXEC_STATE, else the system daemon's socket if there is
// one, else the user's.
func (a *app) resolveAddress() (string, error) {
	if a.address != "" {
		return a.address, nil
	}
	if address, ok := a.Getenv("MACEXEC_ADDRESS"); ok && address != "" {
		return address, nil
	}
	state, err := a.givenState()
	if err != nil {
		return "", err
	}
	if state != "" {
		return unixScheme + filepath.Join(state, socketName), nil
	}
	known, err := a.places()
	if info, statErr := os.Stat(known.systemSocket); statErr == nil && info.Mode().Type() == os.ModeSocket {
		return unixScheme + known.systemSocket, nil
	}
	return unixScheme + filepath.Join(known.userState, socketName), err
}

// resolveState says which state folder a daemon started here uses.
func (a *app) resolveState() (string, error) {
	state, err := a.givenState()
	if state != "" || err != nil {
		return state, err
	}
	known, err := a.places()
	return known.userState, err
}

// givenState is the folder that --state or MACEXEC_STATE names, absolute; empty
// if neither does.
func (a *app) givenState() (string, error) {
	state := a.state
	if state == "" {
		state, _ = a.Getenv("MACEXEC_STATE")
	}
	if state == "" {
		return "", nil
	}
	return filepath.Abs(state)
}

// home is the user's home folder.
func home(getenv func(string) (string, bool)) (string, error) {
	if dir, ok := getenv("HOME"); ok && filepath.IsAbs(dir) {
		return dir, nil
	}
	return "", usagef("say where the state folder is: --state DIR, or MACEXEC_STATE",
		"HOME is not set, so this user has no default state folder")
}
