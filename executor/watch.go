package executor

import "time"

// tickEvery is used only where no event can be had.
const tickEvery = 200 * time.Millisecond

func tick(events chan<- struct{}, stop <-chan struct{}) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			notify(events)
		case <-stop:
			return
		}
	}
}

// notify leaves a mark that something happened; one mark is enough.
func notify(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default:
	}
}
