package files_test

func publishChild() {}
