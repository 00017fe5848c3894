package main

import "path/filepath"

func (a *app) places() (places, error) {
	dir, err := home(a.Getenv)
	return places{
		// Root makes the folder at each start: /var/run is emptied by a boot.
		systemSocket: "/var/run/macexec/" + socketName,
		userState:    filepath.Join(dir, "Library", "Application Support", "macexec", "state"),
	}, err
}
