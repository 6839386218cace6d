//go:build race

package sandboxtest_test

// raceEnabled says that the race detector is in, which needs several times the
// memory and the time.
const raceEnabled = true
