package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Everything goes on after a restart, and what ended meanwhile has ended.
func TestRestart(t *testing.T) {
	f := startLocal(t, Options{})
	a := f.create(map[string]any{"metadata": map[string]string{"k": "v"}, "timeout": 500,
		"network": map[string]any{"allowPublicTraffic": false}})
	b := f.create(map[string]any{"timeout": 500})
	dead := f.create(nil)
	late := f.create(map[string]any{"autoPause": true, "timeout": 600})
	f.run(a, "echo kept > file")
	f.want(f.do("POST", "/sandboxes/"+b.SandboxID+"/pause", nil), 204)
	before := f.detail(a.SandboxID)
	other, err := f.s.Keys().Create("other")
	if err != nil {
		t.Fatal(err)
	}
	const left = 4 * time.Second // more than stopping takes
	f.want(f.do("POST", "/sandboxes/"+late.SandboxID+"/timeout", fmt.Sprintf(`{"timeout":%d}`, int(left.Seconds()))), 204)
	end := time.Now().Add(left)
	f.stop()

	ctx := context.Background()
	if err := f.provider.Kill(ctx, dead.SandboxID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(end.Add(100 * time.Millisecond))) // the end of late passes while nobody is there
	if sb, err := f.provider.Get(ctx, late.SandboxID); err != nil || sb.State != providers.StateRunning {
		t.Fatalf("a sandbox that is to be paused at its end: %v, %v", sb, err)
	}
	f.begin(Options{})

	after := f.detail(a.SandboxID)
	if d := after.EndAt.Sub(before.EndAt).Abs(); d > time.Second || after.Metadata["k"] != "v" || after.EnvdAccessToken != before.EnvdAccessToken {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if got := f.run(a, "cat file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	f.want(f.data(a, 8080, "GET", "/", nil, api.HeaderTraffic, "wrong"), 403)
	f.want(f.data(a, 8080, "GET", "/", nil, api.HeaderTraffic, *a.TrafficAccessToken), 502)
	if s := f.detail(b.SandboxID).State; s != "paused" {
		t.Errorf("a paused one is %s", s)
	}
	f.want(f.do("POST", "/v2/sandboxes/"+b.SandboxID+"/connect", nil), 201)
	f.run(b, "true")
	f.want(f.do("GET", "/sandboxes/"+dead.SandboxID, nil), 404)
	eventually(t, "the one whose end passed is paused", func() bool { return f.detail(late.SandboxID).State == "paused" })
	if ids, _, _ := f.page(""); len(ids) != 3 {
		t.Errorf("%q", ids)
	}
	if r, err := f.try("GET", "/sandboxes/"+a.SandboxID, nil, "X-API-Key", other.Secret); err != nil || r.StatusCode != 404 {
		t.Errorf("another key: %v, %v", r, err)
	}
	records, err := os.ReadDir(filepath.Join(f.state, "gateway", boxesDir))
	if err != nil || len(records) != 3 {
		t.Errorf("%d records, %v", len(records), err)
	}
	for _, r := range records {
		content, err := os.ReadFile(filepath.Join(f.state, "gateway", boxesDir, r.Name()))
		if err != nil || strings.Contains(string(content), a.EnvdAccessToken) {
			t.Errorf("a record holds the runtime's token, or %v", err)
		}
	}
}

// What a fall leaves between two steps is put in order by the next start.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name   string
		phase  phase
		paused bool // what the provider says
		auto   bool
		left   time.Duration // to the record's end
		want   phase
		least  time.Duration // what then is left
		most   time.Duration
	}{
		{"nothing happened", phaseRunning, false, false, time.Minute, phaseRunning, 50 * time.Second, time.Minute},
		{"paused", phasePaused, true, false, keepPaused, phasePaused, keepPaused - time.Minute, keepPaused},
		{"fell before the pause", phasePausing, false, false, time.Minute, phaseRunning, 50 * time.Second, time.Minute},
		{"fell before the pause at its end", phasePausing, false, true, -time.Second, phasePaused, keepPaused - time.Minute, keepPaused},
		{"fell after the pause", phasePausing, true, false, time.Minute, phasePaused, keepPaused - time.Minute, keepPaused},
		{"fell before going on", phaseResuming, true, false, keepPaused, phasePaused, keepPaused - time.Minute, keepPaused},
		{"fell after going on", phaseResuming, false, false, keepPaused, phaseRunning, 290 * time.Second, 300 * time.Second},
		{"somebody else paused it", phaseRunning, true, false, time.Minute, phasePaused, keepPaused - time.Minute, keepPaused},
		{"somebody else let it go on", phasePaused, false, false, keepPaused, phaseRunning, 290 * time.Second, 300 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newFake()
			f := start(t, t.TempDir(), Options{Provider: p})
			sb := f.create(map[string]any{"autoPause": c.auto})
			r := f.s.boxes[sb.SandboxID].snapshot()
			f.stop()
			r.Phase, r.End = c.phase, time.Now().Add(c.left)
			st := &store{boxes: filepath.Join(f.state, "gateway", boxesDir)}
			if err := st.save(&r); err != nil {
				t.Fatal(err)
			}
			p.mu.Lock()
			p.boxes[sb.SandboxID].ExpiresAt = time.Now().Add(keepPaused)
			if c.paused {
				p.boxes[sb.SandboxID].State = providers.StatePaused
			}
			p.mu.Unlock()
			f.begin(Options{})
			eventually(t, string(c.want), func() bool { return f.s.boxes[sb.SandboxID].phase() == c.want })
			if left := time.Until(f.detail(sb.SandboxID).EndAt); left < c.least || left > c.most {
				t.Errorf("%v left", left)
			}
		})
	}
}

// Sandboxes that a fall left without a record are ended, those of others not.
func TestOrphans(t *testing.T) {
	f := startLocal(t, Options{})
	kept := f.create(nil)
	orphan := f.create(nil)
	ctx := context.Background()
	foreign, err := f.provider.Create(ctx, providers.CreateRequest{Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	f.stop()
	if err := os.Remove(filepath.Join(f.state, "gateway", boxesDir, orphan.SandboxID)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.state, "gateway", boxesDir, tempPattern+"1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.begin(Options{})
	if _, err := f.provider.Get(ctx, orphan.SandboxID); !isGone(err) {
		t.Errorf("the orphan: %v", err)
	}
	if _, err := f.provider.Get(ctx, foreign.ID); err != nil {
		t.Errorf("a sandbox that is not ours: %v", err)
	}
	ids, _, _ := f.page("")
	if !slices.Equal(ids, []string{kept.SandboxID}) {
		t.Errorf("%q", ids)
	}
	f.want(f.do("GET", "/sandboxes/"+foreign.ID, nil), 404)
	f.want(f.data(api.Sandbox{SandboxID: foreign.ID}, envdPort, "GET", "/health", nil), 502)
}

func TestTwoGatewaysOnOneDirectory(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	dir := filepath.Join(f.state, "gateway")
	if _, err := New(&Options{Provider: newFake(), StateDir: dir}); errdefs.CodeOf(err) != "E8007" || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("%v", err)
	}
	f.stop()
	s, err := New(&Options{Provider: newFake(), StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	for name, o := range map[string]*Options{
		"nil":           nil,
		"no provider":   {StateDir: dir},
		"no dir":        {Provider: newFake()},
		"network":       {Provider: newFake(), StateDir: dir, Network: "all"},
		"lifetime":      {Provider: newFake(), StateDir: dir, MaxLifetime: time.Millisecond},
		"lifetime, too": {Provider: newFake(), StateDir: dir, MaxLifetime: 31 * 24 * time.Hour},
	} {
		if s, err := New(o); errdefs.CodeOf(err) != "E8007" {
			t.Errorf("%s: %v", name, err)
			if s != nil {
				s.Shutdown(context.Background())
			}
		}
	}
	bad := newFake()
	bad.onList = func() error { return errdefs.New("E8000", "list", "no") }
	if _, err := New(&Options{Provider: bad, StateDir: dir}); errdefs.CodeOf(err) != "E8000" {
		t.Errorf("%v", err)
	}
	s, err := New(&Options{Provider: newFake(), StateDir: dir}) // nothing holds the directory
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown(context.Background())
}

func init() { roles["gateway"] = serveUntilKilled }

// serveUntilKilled runs a gateway on the state directory in the environment.
func serveUntilKilled() error {
	state := os.Getenv("GATEWAY_TEST_STATE")
	p, err := local.New(providers.Config{StateDir: state, Settings: map[string]string{"pool": "0"}})
	if err != nil {
		return err
	}
	s, err := New(&Options{Provider: p, StateDir: filepath.Join(state, "gateway")})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return s.Serve(l)
}

// A gateway that is killed in the middle of creations leaves nothing that its
// successor does not find.
func TestKilledInTheMiddle(t *testing.T) {
	f := startLocal(t, Options{})
	f.stop()
	for round := range 3 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envRole+"=gateway", "GATEWAY_TEST_STATE="+f.state)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		f.addr, err = bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		f.addr = strings.TrimSpace(f.addr)
		answered := make(chan string, 8)
		for range 8 {
			go func() {
				r, err := f.try("POST", "/v2/sandboxes", `{"templateID":"base"}`, "X-API-Key", f.key)
				if err != nil || r.StatusCode != 201 {
					answered <- ""
					return
				}
				answered <- r.field(t, "sandboxID").(string)
			}()
		}
		time.Sleep(time.Duration(20+60*round) * time.Millisecond) // anywhere will do
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		f.client.CloseIdleConnections()
		var told []string
		for range 8 {
			if id := <-answered; id != "" {
				told = append(told, id)
			}
		}
		f.begin(Options{})
		ids, _, _ := f.page("")
		for _, id := range told {
			if !slices.Contains(ids, id) {
				t.Errorf("a sandbox that a client was told of is lost")
			}
		}
		page, err := f.provider.List(context.Background(), providers.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Sandboxes {
			if !slices.Contains(ids, sb.ID) {
				t.Errorf("a sandbox nobody knows of lives on")
			}
		}
		for _, id := range ids {
			f.want(f.do("DELETE", "/sandboxes/"+id, nil), 204)
		}
		f.stop()
	}
}
