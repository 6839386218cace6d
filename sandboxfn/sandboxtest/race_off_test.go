//go:build !race

package sandboxtest_test

const raceEnabled = false
