//go:build !race

package raceenv

// Name is the variable with the options of the race detector.
const Name = "GORACE"

// Lookup returns nothing: this program has no race detector.
func Lookup() (string, bool) { return "", false }
