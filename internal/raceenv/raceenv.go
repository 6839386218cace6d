// Package raceenv hands the options of the race detector on, in programs that are
// built with it. Without them each such program sleeps for a second before it
// ends.
package raceenv

// Name is the variable with the options of the race detector.
const Name = "GORACE"
