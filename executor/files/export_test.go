package files

import "context"

// Advance makes at most n single changes of a step, as if a crash came after them;
// false if the step ended before.
func Advance(ctx context.Context, step Step, n int) (bool, error) {
	c, err := open(step)
	if err != nil {
		return false, err
	}
	defer c.close()
	for range n {
		res, err := c.advance(ctx)
		if err != nil || res.Outcome != "" {
			return false, err
		}
	}
	return true, nil
}

// PlaceSteps does the same for Place.
func PlaceSteps(ctx context.Context, step Step, n int) (bool, error) {
	c, err := open(step)
	if err != nil {
		return false, err
	}
	defer c.close()
	for range n {
		if _, done, err := c.placeOnce(ctx); err != nil || done {
			return false, err
		}
	}
	return true, nil
}

// CreateLate carries a create step whose look found the destination free, while
// take puts something there between the look and the change.
func CreateLate(ctx context.Context, step Step, take func()) error {
	c, err := open(step)
	if err != nil {
		return err
	}
	defer c.close()
	take()
	for range 2 { // mode and owner, then the name
		temp, ok, err := c.dir.lstat(c.temp)
		if err != nil || !ok {
			return err
		}
		if _, err := c.create(ctx, temp, false); err != nil {
			return err
		}
	}
	return nil
}

// ReadNote reads a note that has the name of a step's folder.
func ReadNote(name string, text []byte) (Trashed, bool) { return parseNote(name, text) }
