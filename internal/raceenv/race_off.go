//go:build !race

package raceenv

// Lookup returns nothing: this program has no race detector.
func Lookup() (string, bool) { return "", false }
