package sdktest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// descriptors counts the open descriptors of the gateway.
func (g *gateway) descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// memory is what the gateway has of memory, in bytes.
func (g *gateway) memory(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", g.pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// waitUntil waits for a condition of another process that says nothing of it.
func waitUntil(t *testing.T, what string, check func() (done bool, now string)) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		done, now := check()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Errorf("not %s: %s", what, now)
			return
		}
	}
}
