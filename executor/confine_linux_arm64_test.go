package executor_test

// oldMetadataCalls are those that newer architectures do without.
func oldMetadataCalls(string) []string { return nil }
