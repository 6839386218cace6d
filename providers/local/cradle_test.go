//go:build linux

package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// The network of a sandbox is ready when it starts, and neither the client's nor
// that of a thread which stays.
func TestCradle(t *testing.T) {
	needIsolation(t)
	if os.Geteuid() != 0 {
		t.Skip("for root only")
	}
	p := testProvider(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, p, providers.CreateRequest{})
	out, _, err := shell(t.Context(), sb, "readlink /proc/self/ns/net; cat /proc/net/dev; cat /proc/net/route; grep -c 00000001 /proc/net/if_inet6")
	if err != nil || strings.Contains(out, own) || strings.Contains(out, "eth") || !strings.Contains(out, "lo:") {
		t.Errorf("%q, %v", out, err)
	}
	eventually(t, "all threads are in the network of this process", func() bool {
		links, _ := filepath.Glob("/proc/self/task/*/ns/net")
		for _, l := range links {
			if ns, err := os.Readlink(l); err == nil && ns != own {
				return false
			}
		}
		return len(links) > 0
	})
	if err := checkNetwork(os.Getpid()); err == nil {
		t.Error("a process in the network of the client was accepted")
	}
}

// A cradle that is not used ends, and one that could not be made is not used.
func TestCradleUnused(t *testing.T) {
	c := newCradle()
	if c.ready() != (os.Geteuid() == 0) {
		t.Error("ready is wrong")
	}
	c.close()
	newCradle().close()
	if (*cradle)(nil).ready() {
		t.Error("none is ready")
	}
	(*cradle)(nil).close()
}
