//go:build !linux

package artifact

func ownPath(executable string) string { return executable }
