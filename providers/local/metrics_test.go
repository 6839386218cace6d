//go:build linux

package local

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// TestMetricsInside: what the runtime says of itself has the limits of the
// sandbox, not of the machine, and counts what runs in it.
func TestMetricsInside(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{CPUMilli: 500, MemoryMiB: 256}})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.Data.Dial(ctx) }}
	defer transport.CloseIdleConnections()
	sh(t, sb, "head -c 8000000 /dev/zero >/tmp/file")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://sandbox/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Access-Token", sb.Data.Token.Reveal())
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m map[string]float64
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if m["mem_total"] != 256<<20 || m["cpu_count"] != 1 || m["disk_used"] < 8000000 || m["mem_used"] < 8000000 || m["mem_used"] > 256<<20 || m["cpu_used_pct"] < 0 || m["cpu_used_pct"] > 100 {
		t.Errorf("got %v", m)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}
