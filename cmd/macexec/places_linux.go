package main

import "path/filepath"

func (a *app) places() (places, error) {
	const system = "/run/macexec/" + socketName
	if base, ok := a.Getenv("XDG_STATE_HOME"); ok && filepath.IsAbs(base) {
		return places{system, filepath.Join(base, "macexec")}, nil
	}
	dir, err := home(a.Getenv)
	return places{system, filepath.Join(dir, ".local", "state", "macexec")}, err
}
