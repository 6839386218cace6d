package term

func IsTerminal(fd int) bool { return false }
