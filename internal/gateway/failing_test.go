package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// shaky is a fake whose answers tests can hold back, spoil or refuse.
type shaky struct {
	*fake
	mu       sync.Mutex
	get      func(*providers.Sandbox) error // sees each answer of Get
	lifetime func(id string) error          // before each SetLifetime
}

func (p *shaky) set(get func(*providers.Sandbox) error, lifetime func(string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.get, p.lifetime = get, lifetime
}

func (p *shaky) Get(ctx context.Context, id string) (*providers.Sandbox, error) {
	sb, err := p.fake.Get(ctx, id)
	p.mu.Lock()
	get := p.get
	p.mu.Unlock()
	if err == nil && get != nil {
		err = get(sb)
	}
	return sb, err
}

func (p *shaky) SetLifetime(ctx context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	p.mu.Lock()
	lifetime := p.lifetime
	p.mu.Unlock()
	if lifetime != nil {
		if err := lifetime(id); err != nil {
			return nil, err
		}
	}
	return p.fake.SetLifetime(ctx, id, d)
}

func (p *shaky) Usage(context.Context, string) (providers.Usage, error) {
	return providers.Usage{At: time.Now()}, nil
}

// left is how long the provider lets a sandbox live.
func (p *shaky) left(t *testing.T, id string) time.Duration {
	t.Helper()
	sb, err := p.fake.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(sb.ExpiresAt)
}

// An answer of the provider that is older than a pause or a resume changes
// nothing.
func TestAnswerThatIsOld(t *testing.T) {
	for _, what := range []string{"pause", "resume"} {
		t.Run(what, func(t *testing.T) {
			p := &shaky{fake: newFake()}
			f := start(t, t.TempDir(), Options{Provider: p})
			sb := f.create(map[string]any{"timeout": 3600})
			path := "/sandboxes/" + sb.SandboxID
			change := func() {
				if what == "pause" {
					f.want(f.do("POST", path+"/pause", nil), 204)
				} else {
					f.want(f.do("POST", path+"/resume", `{"timeout":3600}`), 201)
				}
			}
			if what == "resume" {
				f.want(f.do("POST", path+"/pause", nil), 204)
			}
			took, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p.set(func(*providers.Sandbox) error {
				once.Do(func() { close(took); <-goOn })
				return nil
			}, nil)
			got := make(chan *reply, 1)
			go func() { got <- f.do("GET", "/v2/sandboxes", nil) }()
			<-took
			change()
			close(goOn)
			f.want(<-got, 200)
			// Before anybody looks again, who would put it in order.
			want := map[string]phase{"pause": phasePaused, "resume": phaseRunning}[what]
			if got := f.s.boxes[sb.SandboxID].phase(); got != want || what == "pause" && p.left(t, sb.SandboxID) < keepPaused-time.Minute {
				t.Errorf("%s, the provider ends it in %v", got, p.left(t, sb.SandboxID))
			}
			d := f.detail(sb.SandboxID)
			if what == "pause" {
				if d.State != "paused" || time.Until(d.EndAt) < keepPaused-time.Minute || p.left(t, sb.SandboxID) < keepPaused-time.Minute {
					t.Errorf("%s until %v, the provider ends it in %v", d.State, d.EndAt, p.left(t, sb.SandboxID))
				}
				return
			}
			if d.State != "running" || time.Until(d.EndAt) < 3500*time.Second || time.Until(d.EndAt) > 3600*time.Second {
				t.Errorf("%s until %v", d.State, d.EndAt)
			}
		})
	}
}

// A state that is not known is none to act on.
func TestStateThatIsNotKnown(t *testing.T) {
	for _, st := range []providers.State{providers.StateUnknown, providers.StateStarting} {
		p := &shaky{fake: newFake()}
		f := start(t, t.TempDir(), Options{Provider: p})
		sb := f.create(map[string]any{"timeout": 3600})
		f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 204)
		p.set(func(sb *providers.Sandbox) error { sb.State = st; return nil }, nil)
		if d := f.detail(sb.SandboxID); d.State != "paused" || p.left(t, sb.SandboxID) < keepPaused-time.Minute {
			t.Errorf("%s: %s, the provider ends it in %v", st, d.State, p.left(t, sb.SandboxID))
		}
	}
}

// Somebody else pauses a sandbox and lets it go on: it is kept while paused, and
// then has the end of before.
func TestPausedBySomebodyElse(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(map[string]any{"timeout": 3600})
	if err := p.Pause(context.Background(), sb.SandboxID); err != nil {
		t.Fatal(err)
	}
	if d := f.detail(sb.SandboxID); d.State != "paused" || p.left(t, sb.SandboxID) < keepPaused-time.Minute {
		t.Errorf("%s, the provider ends it in %v", d.State, p.left(t, sb.SandboxID))
	}
	if _, err := p.Resume(context.Background(), sb.SandboxID, providers.ConnectRequest{}); err != nil {
		t.Fatal(err)
	}
	d := f.detail(sb.SandboxID)
	if left := p.left(t, sb.SandboxID); d.State != "running" || left < 3500*time.Second || left > 3600*time.Second || time.Until(d.EndAt) > 3600*time.Second {
		t.Errorf("%s until %v, the provider ends it in %v", d.State, d.EndAt, left)
	}
}

// full makes records impossible to write until it is called again.
func (f *fixture) full() (again func()) {
	f.t.Helper()
	dir := filepath.Join(f.state, "gateway", boxesDir)
	if err := os.Rename(dir, dir+".away"); err != nil {
		f.t.Fatal(err)
	}
	return func() {
		if err := os.Rename(dir+".away", dir); err != nil {
			f.t.Error(err)
		}
	}
}

// A disk that is full keeps no sandbox between two states.
func TestFullDisk(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(map[string]any{"timeout": 3600})
	auto := f.create(map[string]any{"timeout": 3, "autoPause": true})
	path := "/sandboxes/" + sb.SandboxID
	again := f.full()
	f.want(f.do("POST", path+"/pause", nil), 500)
	if got := f.s.boxes[sb.SandboxID].phase(); got != phaseRunning {
		t.Errorf("after a pause that could not be noted: %s", got)
	}
	b := f.s.boxes[auto.SandboxID]
	eventually(t, "an automatic pause fails", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.tries > 0
	})
	again()
	eventually(t, "it is paused then", func() bool { return b.phase() == phasePaused })
	f.want(f.do("POST", path+"/pause", nil), 204)
	again = f.full()
	f.want(f.do("POST", path+"/resume", nil), 500)
	again()
	if got := f.s.boxes[sb.SandboxID].phase(); got != phasePaused {
		t.Errorf("after a resume that could not be noted: %s", got)
	}
	f.want(f.do("POST", path+"/resume", nil), 201)

	// It becomes full during the pause: the sandbox is paused all the same, and
	// a restart finds it so.
	p.onPause = func() error { again = f.full(); return nil }
	f.want(f.do("POST", path+"/pause", nil), 204)
	p.onPause = nil
	again()
	f.stop()
	f.begin(Options{})
	if d := f.detail(sb.SandboxID); d.State != "paused" || time.Until(d.EndAt) < keepPaused-time.Minute {
		t.Errorf("%s until %v", d.State, d.EndAt)
	}
}

// A pause fails and so does all that is to undo it: the sandbox runs, and ends
// when it was to end.
func TestPauseThatCannotBeUndone(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(map[string]any{"timeout": 5})
	p.onPause = func() error {
		p.set(nil, func(string) error { return errors.New("no") })
		return errors.New("no")
	}
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 500)
	if got := f.s.boxes[sb.SandboxID].phase(); got != phaseRunning {
		t.Errorf("%s", got)
	}
	eventually(t, "it has ended", func() bool { return f.do("GET", "/sandboxes/"+sb.SandboxID, nil).StatusCode == 404 })
}

// It went on and could not be given its end: that is tried again.
func TestResumeThatIsHalfDone(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(nil)
	path := "/sandboxes/" + sb.SandboxID
	f.want(f.do("POST", path+"/pause", nil), 204)
	p.set(nil, func(string) error { return errors.New("no") })
	f.want(f.do("POST", path+"/resume", `{"timeout":1000}`), 500)
	p.set(nil, nil)
	b := f.s.boxes[sb.SandboxID]
	eventually(t, "it is running", func() bool { return b.phase() == phaseRunning })
	if left := p.left(t, sb.SandboxID); left < 900*time.Second || left > 1000*time.Second {
		t.Errorf("the provider ends it in %v", left)
	}
}

// An automatic pause that fails is tried again, later each time, and nobody is
// cut off by it.
func TestAutoPauseThatFails(t *testing.T) {
	p := newFake()
	var tries atomic.Int64
	p.onPause = func() error {
		if tries.Add(1) < 4 {
			return errors.New("no")
		}
		return nil
	}
	f := start(t, t.TempDir(), Options{Provider: p})
	begin := time.Now()
	sb := f.create(map[string]any{"timeout": 3, "autoPause": true})
	b := f.s.boxes[sb.SandboxID]
	open, _, done := b.enter(1)
	defer done()
	eventually(t, "two tries failed", func() bool { return tries.Load() >= 2 })
	if err := context.Cause(open); err != nil {
		t.Errorf("cut off: %v", err)
	}
	eventually(t, "it is paused", func() bool { return b.phase() == phasePaused })
	if n, took := tries.Load(), time.Since(begin); n != 4 || took < (3+1+2+4)*time.Second {
		t.Errorf("%d tries in %v", n, took)
	}
	eventually(t, "connections are cut", func() bool { return context.Cause(open) == errPausedNow })
}

// One sandbox that does not answer keeps neither the gateway from starting nor
// the others from being listed.
func TestOneThatDoesNotAnswer(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	bad, good := f.create(map[string]any{"timeout": 3600}), f.create(nil)
	refuseBad := func(id string) error {
		if id == bad.SandboxID {
			return errdefs.New("E2009", "test", "no answer")
		}
		return nil
	}
	p.set(func(sb *providers.Sandbox) error { return refuseBad(sb.ID) }, refuseBad)
	both := func() {
		t.Helper()
		if ids, _, _ := f.page(""); len(ids) != 2 {
			t.Errorf("listed: %q", ids)
		}
	}
	both()
	f.stop()
	if err := p.Pause(context.Background(), bad.SandboxID); err != nil { // so that its end is to be moved
		t.Fatal(err)
	}
	f.begin(Options{})
	both()
	f.want(f.do("GET", "/sandboxes/"+good.SandboxID, nil), 200)
	p.set(nil, nil)
	b := f.s.boxes[bad.SandboxID]
	eventually(t, "it is taken up", func() bool { return b.phase() == phasePaused && p.left(t, bad.SandboxID) > keepPaused-time.Minute })
}

// Somebody who asks for much and reads nothing keeps nobody waiting.
func TestSlowReaderOfMetrics(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(map[string]any{"timeout": 3600})
	b := f.s.boxes[sb.SandboxID]
	b.mu.Lock()
	for i := range maxSamples {
		b.samples.add(asMetric(providers.Usage{At: time.Now().Add(time.Duration(i-maxSamples) * samplePeriod)}, &b.rec))
	}
	b.mu.Unlock()
	for range 2 {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(4096)
		request := fmt.Sprintf("GET /sandboxes/%s/metrics HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n\r\n", sb.SandboxID, f.key)
		c.Write([]byte(strings.Repeat(request, 200)))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: answerTimeout / 3}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		req, err := http.NewRequest("GET", "http://"+f.addr+"/v2/sandboxes", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", f.key)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
}

// Without a time of its own a sandbox gets no more than the maximum.
func TestDefaultTimeIsClamped(t *testing.T) {
	p := &shaky{fake: newFake()}
	f := start(t, t.TempDir(), Options{Provider: p, MaxLifetime: time.Minute})
	sb := f.create(nil)
	if left := p.left(t, sb.SandboxID); left > time.Minute {
		t.Errorf("it ends in %v", left)
	}
}

func TestLimitsFollowDescriptors(t *testing.T) {
	for n, want := range map[int]int{0: 8, 1024: 64, 1 << 20: perSandbox} {
		l := limitsFor(n)
		if l.perSandbox != want || 4*l.perSandbox > l.carried {
			t.Errorf("%d descriptors: %+v", n, l)
		}
	}
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	sb := f.create(nil)
	f.s.limits.perSandbox = 8
	b := f.s.boxes[sb.SandboxID]
	for range 6 {
		_, _, done := b.enter(8)
		defer done()
	}
	f.want(f.data(sb, 8080, "GET", "/", nil), 429)
	f.want(f.data(sb, envdPort, "GET", "/health", nil), 502) // there is room, but the fake has no runtime
	f.s.limits.perSandbox, f.s.limits.carried = 100, 8
	f.s.forward.carried.Add(6)
	defer f.s.forward.carried.Add(-6)
	f.want(f.data(sb, 8080, "GET", "/", nil), 429)
	f.want(f.data(sb, envdPort, "GET", "/health", nil), 502)
}
