package keeper

// ownExecutable is the file this process was started from: macOS gives no
// handle on it.
func ownExecutable(self []string) string { return self[0] }
