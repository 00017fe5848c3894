package engine

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/macexec/macexec/executor/keeper"
)

// The test binary plays the keeper too, as macexec does where no keeper lies beside it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
