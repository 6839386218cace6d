package e2b

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// What this provider paused goes on until the end that it had, wherever the
// service has moved that meanwhile.
func TestPauseKeepsTheEnd(t *testing.T) {
	var asked atomic.Int64
	c := newCloud(t, e2bcloud.Behaviour{Control: func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/connect") {
			body, err := io.ReadAll(r.Body)
			var in api.Connect
			if err != nil || json.Unmarshal(body, &in) != nil || in.Timeout == nil {
				t.Errorf("%q, %v", body, err)
			} else {
				asked.Store(*in.Timeout)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return false
	}})
	p, other := openE2B(t, v1(), to(c.URL, c.Key)), openE2B(t, v1(), to(c.URL, c.Key))
	ctx := t.Context()
	sb, err := p.Create(ctx, providers.CreateRequest{Lifetime: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	about := func(what string, want time.Duration, sb *providers.Sandbox, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(what, err)
		}
		for _, got := range []time.Duration{time.Duration(asked.Load()) * time.Second, time.Until(sb.ExpiresAt)} {
			if got < want-2*time.Minute || got > want+2*time.Second {
				t.Errorf("%s: it has %v, want %v", what, got, want)
			}
		}
	}
	pause := func(p *Provider) {
		t.Helper()
		if err := p.Pause(ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Get(ctx, sb.ID); err != nil { // shows the end of a paused one
			t.Fatal(err)
		}
	}

	pause(p)
	got, err := p.Resume(ctx, sb.ID, providers.ConnectRequest{})
	about("resumed", 2*time.Hour, got, err)
	got, err = p.Resume(ctx, sb.ID, providers.ConnectRequest{})
	about("resumed again", 2*time.Hour, got, err)

	// What somebody else has changed is asked for.
	if _, err := other.SetLifetime(ctx, sb.ID, 3*time.Hour); err != nil {
		t.Fatal(err)
	}
	pause(p)
	got, err = p.Connect(ctx, sb.ID, providers.ConnectRequest{})
	about("connected", 3*time.Hour, got, err)

	pause(p)
	got, err = p.Resume(ctx, sb.ID, providers.ConnectRequest{Lifetime: 4 * time.Hour})
	about("asked for", 4*time.Hour, got, err)

	// Nobody here knows the end: it may be anything.
	pause(other)
	got, err = p.Resume(ctx, sb.ID, providers.ConnectRequest{})
	about("paused by another", p.profile.Lifetime, got, err)

	// What has passed meanwhile is not made up for, but leaves time to act.
	p.known.update(sb.ID, func(f *fact) { f.paused = time.Now().Add(-time.Hour) })
	if left := p.leftOfPaused(sb.ID); left != time.Second {
		t.Errorf("%v are left", left)
	}
	if err := p.Kill(ctx, sb.ID); err != nil {
		t.Error(err)
	}
}
