package providertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func (s *suite) pause() {
	p, ok := s.Provider.(providers.Pauser)
	if !ok {
		s.t.Skip("the provider does not pause")
	}
	ctx := s.t.Context()
	req := s.request()
	id := s.make(req).ID
	if err := p.Pause(ctx, id); err != nil {
		s.t.Fatal(err)
	}
	sb, err := s.Get(ctx, id)
	if err != nil || sb.State != providers.StatePaused {
		s.t.Fatalf("paused: %+v, %v", sb, err)
	}
	if sb.Data.URL != "" || sb.Data.Dial != nil {
		s.t.Error("a paused sandbox has an endpoint")
	}
	s.eventually("list of the paused", func() string {
		if got := ids(s.all(providers.ListRequest{States: []providers.State{providers.StatePaused}})); !slices.Equal(got, []string{id}) {
			return fmt.Sprintf("%q", got)
		}
		return ""
	})
	if got := ids(s.all(providers.ListRequest{})); !slices.Equal(got, []string{id}) {
		s.t.Errorf("list without states: %q", got)
	}
	if got := ids(s.all(providers.ListRequest{States: []providers.State{providers.StateRunning}})); len(got) != 0 {
		s.t.Errorf("list of the running: %q", got)
	}
	s.want("pause of a paused sandbox", p.Pause(ctx, id), "E2024")

	for _, how := range []struct {
		name string
		f    func() (*providers.Sandbox, error)
	}{
		{"resume", func() (*providers.Sandbox, error) {
			return p.Resume(ctx, id, providers.ConnectRequest{Lifetime: 10 * time.Minute})
		}},
		{"resume of a running sandbox", func() (*providers.Sandbox, error) { return p.Resume(ctx, id, providers.ConnectRequest{}) }},
		{"connect to a paused sandbox", func() (*providers.Sandbox, error) {
			if err := p.Pause(ctx, id); err != nil {
				return nil, err
			}
			return s.Connect(ctx, id, providers.ConnectRequest{Lifetime: 10 * time.Minute})
		}},
	} {
		sb, err := how.f()
		if err != nil {
			s.t.Fatal(how.name+":", err)
		}
		asked := req
		asked.Lifetime = 10 * time.Minute
		s.described(how.name, sb, id, asked)
		if err := answers(ctx, sb.Data); err != nil {
			s.t.Error("the runtime after", how.name+":", err)
		}
	}
	if err := p.Pause(ctx, id); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Kill(ctx, id); err != nil {
		s.t.Error("kill of a paused sandbox:", err)
	}
	s.eventually("kill of a paused sandbox", func() string {
		if _, err := s.Get(ctx, id); !slices.Contains([]errdefs.Code{"E2020", "E2022"}, errdefs.CodeOf(err)) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

func (s *suite) ports() {
	p, ok := s.Provider.(providers.PortExposer)
	if !ok {
		s.t.Skip("the provider does not expose ports")
	}
	ctx := s.t.Context()
	id := s.make(s.request()).ID
	e, err := p.Port(ctx, id, 8080) // nothing listens there
	if err != nil {
		s.t.Fatal(err)
	}
	if e.URL == "" && e.Dial == nil {
		s.t.Error("the endpoint of a port says no way")
	}
	if e.Token != "" {
		s.t.Error("the endpoint of a user's port holds the token of the runtime")
	}
	for _, port := range []int{0, -1, 65536} {
		_, err := p.Port(ctx, id, port)
		s.want(fmt.Sprintf("port %d", port), err, "E2011")
	}
}

func (s *suite) metrics() {
	p, ok := s.Provider.(providers.Meter)
	if !ok {
		s.t.Skip("the provider does not measure")
	}
	id := s.make(s.request()).ID
	s.eventually("usage", func() string {
		u, err := p.Usage(s.t.Context(), id)
		switch {
		case err != nil:
			return err.Error()
		case time.Since(u.At).Abs() > time.Minute:
			return fmt.Sprintf("from %v", u.At)
		case u.MemoryUsed < 0, u.CPUPercent < 0, u.MemoryCache < 0, u.MemoryTotal < 0, u.DiskUsed < 0, u.DiskTotal < 0, u.CPUs < 0:
			return fmt.Sprintf("%+v: negative", u)
		}
		return ""
	})
}
