package keeper

import "strings"

// seatbeltProfile writes the profile for sandbox-exec. Paths must be real ones.
//
// It starts from allowing, because Apple's media tools talk to many services
// that no list names reliably, and takes away what matters: writing anywhere but
// in the named folders, reading where people keep their files, the keeper's
// records, the network, signals to others. The last rule that matches wins.
func seatbeltProfile(exe string, c Confine) string {
	var b strings.Builder
	line := func(parts ...string) {
		b.WriteString(strings.Join(parts, ""))
		b.WriteByte('\n')
	}
	folders := func(verb string, paths []string) {
		for _, p := range paths {
			line("(", verb, " (subpath ", quoteSBPL(p), "))")
		}
	}
	line("(version 1)")
	line("(allow default)")
	line("(deny file-write*)")
	for _, dev := range []string{"/dev/null", "/dev/zero", "/dev/dtracehelper"} {
		line("(allow file-write-data (literal ", quoteSBPL(dev), "))")
	}
	folders("deny file-read-data file-read-xattr", []string{
		"/Users", "/Volumes", "/private/tmp", "/private/var/folders", "/private/var/root", "/Library/Application Support",
	})
	folders("allow file-read*", c.Read)
	folders("allow file-read* file-write*", c.Write)
	line("(allow file-read* process-exec* (literal ", quoteSBPL(exe), "))")
	folders("deny file-read-data file-read-xattr file-write* process-exec*", c.Deny)
	if !c.Network {
		line("(deny network*)")
	}
	line("(deny signal)")
	line("(allow signal (target same-sandbox))")
	return b.String()
}

func quoteSBPL(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
