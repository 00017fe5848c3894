// Command macexec-keeper holds one running tool and writes down how it ended. It
// is a binary of its own because every start of a tool waits for its start.
// What it does lives in executor/keeper; nothing else may be wired in here.
package main

import (
	"os"

	"github.com/macexec/macexec/executor/keeper"
)

func main() { os.Exit(keeper.Main(os.Args[1:])) }
