//go:build race

package raceenv

import "os"

// Lookup returns the options for programs that this one starts with an
// environment of their own.
func Lookup() (string, bool) { return os.LookupEnv(Name) }
