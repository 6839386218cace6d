package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// levels counts what could leak in this process; on the host provider, that is
// the sandbox's server too.
func levels(t *testing.T, sb *Sandbox) (fds, goroutines int) {
	t.Helper()
	sb.envd.Close() // idle connections come and go
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list), runtime.NumGoroutine()
}

// Starts that fail, succeed or are cancelled, and file operations that fail,
// leave nothing behind on either side.
func TestNoLeaks(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		rounds := 400
		if testing.Short() {
			rounds = 100
		}
		ctx := t.Context()
		f, dir := sb.FS(ctx), workDir(t, sb)
		mixed := func(n int) {
			for i := range n {
				var err error
				switch i % 8 {
				case 0, 1:
					if err = sb.Command(ctx, "no-such-program-here").Run(); errors.Is(err, ErrCommandNotFound) {
						err = nil
					}
				case 2, 3:
					err = sb.Command(ctx, "true").Run()
				case 4:
					short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
					if err = sb.Command(short, "sleep", "10").Run(); errors.Is(err, context.DeadlineExceeded) {
						err = nil
					}
					cancel()
				case 5:
					if _, err = f.ReadFile(dir + "/none"); errors.Is(err, os.ErrNotExist) {
						err = nil
					}
				case 6:
					err = f.WriteFile(dir+"/f", []byte("x"), 0)
				case 7:
					short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(1000))*time.Microsecond)
					_, err = sb.FS(short).ReadFile("/etc/passwd")
					if err == nil || errors.Is(err, context.DeadlineExceeded) {
						err = nil
					}
					cancel()
				}
				if err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
		}
		mixed(80) // what is made once
		fds, goroutines := levels(t, sb)
		mixed(rounds)
		waitFor(t, patience, "descriptors and goroutines as before", func() bool {
			f, g := levels(t, sb)
			return f <= fds+5 && g <= goroutines+5
		})
		waitFor(t, patience, "no process left", func() bool {
			list, err := sb.Processes(ctx)
			return err == nil && len(list) == 0
		})
		if sb.Provider() == "local" {
			waitFor(t, patience, "no defunct process left", func() bool {
				out, err := sb.Shell(ctx, `grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`).Output()
				return err == nil && strings.TrimSpace(string(out)) == "0"
			})
		}
	})
}

// Closing the client closes every connection.
func TestCloseClosesConnections(t *testing.T) {
	p := &hostProvider{}
	c := hostClient(t, p, nil)
	before, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for range 3 {
		sb, err := c.Create(t.Context(), nil)
		must(t, err)
		for i := range 20 {
			must(t, sb.FS(t.Context()).WriteFile(fmt.Sprintf("%s/f%d", p.dir, i), nil, 0))
		}
	}
	must(t, c.Close())
	waitFor(t, patience, "no connection open", func() bool {
		after, err := os.ReadDir("/proc/self/fd")
		return err == nil && len(after) <= len(before)
	})
}
