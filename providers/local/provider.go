//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Name is the name under which the provider is registered.
const Name = "local"

func init() {
	providers.Register(Name, func(c providers.Config) (providers.Provider, error) {
		p, err := New(c)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}

// Settings of providers.Config.
const (
	// settingCgroupParent is a control group, as a path below the root of each
	// hierarchy, in which groups for sandboxes are made.
	settingCgroupParent = "cgroup_parent"

	// settingExpose lists files and directories of the host, separated by
	// colons, that every sandbox shows read-only at the same place: toolchains
	// in /opt, say.
	settingExpose = "expose"

	// settingHosts names hosts whose addresses are given here and not asked for:
	// NAME=ADDRESS, separated by commas; a name more than once has several. A
	// network rule for the name is enough to reach them, private ones too.
	settingHosts = "hosts"

	// settingCheckNames says whether the name in a TLS handshake or a request of
	// HTTP must be the one that a network rule let the connection out for: on,
	// the default, or off. Looked at is the first message of a connection; HTTP/2
	// without TLS, which cannot be, is refused.
	settingCheckNames = "check_names"

	// settingIsolation is what stands between sandbox and host where a request
	// does not say: container (default), gvisor, or auto-strong, which is gvisor
	// where it is proven to work and container, reported as degraded, elsewhere.
	settingIsolation = "isolation"

	// settingKeepNetwork lets detached sandboxes have a list of rules: true, or
	// false, the default. Their connections are served while a provider with
	// this setting is open, and wait otherwise.
	settingKeepNetwork = "keep_network"
)

// Provider makes sandboxes on this machine. It is safe for concurrent use, and
// any number of providers and processes may use one state directory at once.
type Provider struct {
	log    *slog.Logger
	root   string
	expose []string
	net    netSettings

	isolation   string // setting
	keepNetwork bool

	groups func() *cgroupHost
	warn   sync.Once // the first degraded creation logs one line
	pool   *pool

	cache   string // directory; empty: the default
	version string // of the small runtime that would fit; empty: none is used

	openMu sync.Mutex
	tree   *tree  // guarded by openMu until it is set; then it does not change
	store  *store // set with tree
	images *imageStore

	removals removals

	mu     sync.Mutex
	closed bool
	live   map[string]*child // made by this provider and not ended
	kept   []*keptNet
	wg     sync.WaitGroup // one for each of live, one for each operation
}

var (
	_ providers.Provider      = (*Provider)(nil)
	_ providers.Reporter      = (*Provider)(nil)
	_ providers.ArtifactStore = (*Provider)(nil)
	_ providers.Pauser        = (*Provider)(nil)
	_ providers.PortExposer   = (*Provider)(nil)
	_ providers.Meter         = (*Provider)(nil)
	_ providers.Auditor       = (*Provider)(nil)
	_ providers.Collector     = (*Provider)(nil)
)

// New makes a provider. It touches nothing yet: the state directory is opened
// by the first method that needs it, which also removes what dead sandboxes
// left there.
func New(c providers.Config) (*Provider, error) {
	p := &Provider{log: c.Logger, root: c.StateDir, live: map[string]*child{}, net: netSettings{lookup: systemLookup}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.root == "" {
		root, err := defaultStateRoot()
		if err != nil {
			return nil, err
		}
		p.root = root
	}
	if !filepath.IsAbs(p.root) {
		return nil, setting(fmt.Sprintf("state directory %q is not absolute", clip(p.root)))
	}
	p.pool = newPool(p, defaultPool)
	p.cache, p.version = c.CacheDir, moduleVersion()
	for _, k := range slices.Sorted(maps.Keys(c.Settings)) {
		v := c.Settings[k]
		switch k {
		case settingCgroupParent:
			if v != "" && !filepath.IsAbs(v) {
				return nil, setting(k + " must start with a slash")
			}
		case settingExpose:
			for path := range strings.SplitSeq(v, ":") {
				if path == "" {
					continue
				}
				if !filepath.IsAbs(path) {
					return nil, setting(fmt.Sprintf("%s: %q is not absolute", k, clip(path)))
				}
				p.expose = append(p.expose, filepath.Clean(path))
			}
		case settingIsolation:
			if !slices.Contains([]string{"", isolationContainer, isolationGVisor, isolationAutoStrong}, v) {
				return nil, setting(fmt.Sprintf("%s %q is none of %s, %s and %s", k, clip(v), isolationContainer, isolationGVisor, isolationAutoStrong))
			}
			p.isolation = v
		case settingHosts:
			hosts, err := parseHosts(v)
			if err != nil {
				return nil, setting(k + ": " + err.Error())
			}
			p.net.hosts = hosts
		case settingCheckNames:
			if v != "" && v != "on" && v != "off" {
				return nil, setting(fmt.Sprintf("%s is %q; it is on or off", k, clip(v)))
			}
			p.net.trust = v == "off"
		case settingKeepNetwork:
			if v != "" && v != "true" && v != "false" {
				return nil, setting(fmt.Sprintf("%s is %q; it is true or false", k, clip(v)))
			}
			p.keepNetwork = v == "true"
		case settingPool:
			n, err := parsePool(v)
			if err != nil {
				return nil, err
			}
			p.pool.size = n
		case settingSmallRuntime:
			if v != "" && v != "on" && v != "off" {
				return nil, setting(fmt.Sprintf("%s is %q; it is on or off", k, clip(v)))
			}
			if v == "off" {
				p.version = ""
			}
		case "user_agent": // sandboxfn gives it to every provider that has settings
		default:
			return nil, setting(fmt.Sprintf("unknown setting %q; there are %s", clip(k),
				strings.Join([]string{settingCgroupParent, settingCheckNames, settingExpose, settingHosts, settingIsolation, settingKeepNetwork, settingPool, settingSmallRuntime}, ", ")))
		}
	}
	parent := c.Settings[settingCgroupParent]
	p.groups = sync.OnceValue(func() *cgroupHost { return findGroups(parent, p.root) })
	return p, nil
}

func setting(message string) error {
	return &errdefs.Error{Code: "E8007", Op: "open provider local", Message: message}
}

// Name is "local".
func (p *Provider) Name() string { return Name }

// Check reports whether this machine can isolate a sandbox, by really building
// one, without a server, that ends at once. If not it is E2010, an
// [*IsolationError] with cause and remedy.
func (p *Provider) Check(ctx context.Context) error { return probe(ctx) }

// Capabilities says what the provider can do. A lifetime has no maximum. Where
// runsc is installed the first call may take half a second, to prove that it
// works here.
func (p *Provider) Capabilities(ctx context.Context) (providers.Capabilities, error) {
	c := providers.Capabilities{
		Set: map[providers.Capability]bool{
			providers.CapDetached: true, providers.CapMetadataFilter: true, providers.CapVolumes: true,
			providers.CapPause: true, providers.CapPorts: true, providers.CapMetrics: true,
			providers.CapContainer: true, providers.CapDebug: true,
			providers.CapSnapshot: true, providers.CapFork: true, providers.CapHibernate: true,
			providers.CapGVisor:       p.hasGVisor(ctx),
			providers.CapDiskRate:     p.groups().mechanism(limitIO) != "",
			providers.CapEgressPolicy: true, providers.CapNetworkLog: true,
		},
		Lifetime: providers.LifetimeRange{Min: minLifetime, Default: defaultLifetime},
		Networks: []string{netNone, netLoopback, netHost, netList},
	}
	c.Set[providers.CapRootView], c.Set[providers.CapTemplates] = true, true
	if findImage != nil {
		c.Set[providers.CapImages] = true
		c.CreateFloor = pullFloor
	}
	return c, nil
}

// pullFloor is how long the layers of an image may take to get here.
const pullFloor = 15 * time.Minute

// HostArtifacts is true: Create binds CreateRequest.Artifacts into the sandbox.
func (p *Provider) HostArtifacts() bool { return true }

// begin starts an operation, which Close waits for, on the state directory.
// The operation ends with done; after an error there is none to end.
func (p *Provider) begin(ctx context.Context, op string) (t *tree, done func(), err error) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if closed {
		return nil, nil, &errdefs.Error{Code: "E8000", Op: op, Message: "the provider is closed"}
	}
	if t, err = p.open(ctx); err != nil {
		p.wg.Done()
		return nil, nil, err
	}
	return t, p.wg.Done, nil
}

// open opens the state directory, once, and collects.
func (p *Provider) open(ctx context.Context) (*tree, error) {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	if p.tree != nil {
		return p.tree, nil
	}
	t, err := openTree(p.root)
	if err != nil {
		return nil, err
	}
	t.log, t.removals = p.log, &p.removals
	p.tree, p.store = t, &store{dir: t.bin, path: filepath.Join(t.path, "bin"), removals: &p.removals}
	if p.images, err = t.openImages(p.log, mappingKind()); err != nil {
		t.close()
		p.tree = nil
		return nil, err
	}
	p.images.removals = &p.removals
	if err := p.collect(ctx); err != nil {
		p.log.WarnContext(ctx, "remains of dead sandboxes not removed", "err", err)
	}
	if err := p.resumeNetworks(ctx, t); err != nil {
		p.log.WarnContext(ctx, "networks of detached sandboxes are not served", "err", err)
	}
	return t, nil
}

func (p *Provider) collect(ctx context.Context) error {
	before := time.Now().Add(-storeKeep)
	err := errors.Join(p.tree.collect(ctx), p.collectStore(before), p.collectImages(before))
	p.groups().collectStrays()
	return err
}

// GC removes what sandboxes that are dead left behind: directories, control
// groups and leases; and executables and images that were not used for seven days. Every
// provider does so when it first opens its state directory: the processes of a
// sandbox end with its client, whatever ends that, but its empty directory
// waits for the next client.
func (p *Provider) GC(ctx context.Context) error {
	_, err := p.Collect(ctx)
	return err
}

// Collect is GC, and says what was removed; where it is the first operation, also
// what the opening of the state directory has removed.
func (p *Provider) Collect(ctx context.Context) ([]providers.Removed, error) {
	stop := p.removals.watch()
	err := p.gc(ctx)
	return stop(), err
}

func (p *Provider) gc(ctx context.Context) error {
	_, done, err := p.begin(ctx, "collect")
	if err != nil {
		return err
	}
	defer done()
	p.pool.drain()
	err = p.collect(ctx)
	p.groups().tidy()
	return err
}

// Close ends the attached sandboxes of this provider and waits until nothing
// is left of them. Detached ones live on.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	live := slices.Collect(maps.Values(p.live))
	for _, k := range p.kept {
		k.release()
	}
	p.kept = nil
	p.mu.Unlock()
	p.pool.close()
	for _, c := range live {
		c.letGo(p.tree) // set: a sandbox was made
	}
	p.wg.Wait()
	p.openMu.Lock()
	defer p.openMu.Unlock()
	if p.tree == nil {
		return nil
	}
	p.images.close()
	p.tree.close()
	p.tree = nil
	p.groups().tidy()
	var errs []error
	for _, c := range live {
		errs = append(errs, c.err)
	}
	return errors.Join(errs...)
}

// Get describes one sandbox.
func (p *Provider) Get(ctx context.Context, id string) (*providers.Sandbox, error) {
	return p.find(ctx, "get sandbox", id)
}

// find describes a sandbox that is there; what is left of a dead one it
// removes.
func (p *Provider) find(ctx context.Context, op, id string) (*providers.Sandbox, error) {
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	e, err := t.living(ctx, op, id)
	if errors.Is(err, errAsleep) {
		conf, err := t.config(id)
		if err != nil {
			return nil, t.settle(ctx, op, id)
		}
		return describeAsleep(id, &conf), nil
	}
	if err != nil {
		return nil, err
	}
	defer e.close()
	sb, err := p.describe(ctx, e)
	if errors.Is(err, errGone) {
		return nil, t.settle(ctx, op, id)
	}
	return sb, err
}

// living opens the entry of a sandbox whose init lives.
func (t *tree) living(ctx context.Context, op, id string) (*entry, error) {
	switch err := t.collectID(id); {
	case err == nil:
		return nil, t.gone(op, id)
	case errors.Is(err, errAsleep):
		return nil, asleepError(op, id)
	case !errors.Is(err, errBusy):
		return nil, stateError(op, "look at sandbox "+id, err)
	}
	e, err := t.openEntry(id)
	if err != nil {
		return nil, t.settle(ctx, op, id)
	}
	switch {
	case e.pooled():
		err = t.gone(op, id)
	case e.resting():
		err = asleepError(op, id)
	default:
		return e, nil
	}
	e.close()
	return nil, err
}

// settle waits until a sandbox that is on its way out is gone and returns the
// error that says why.
func (t *tree) settle(ctx context.Context, op, id string) error {
	for deadline := time.Now().Add(killLimit); ; {
		err := t.collectID(id)
		if err == nil {
			return t.gone(op, id)
		}
		if errors.Is(err, errAsleep) {
			return asleepError(op, id)
		}
		if !errors.Is(err, errBusy) {
			return err
		}
		if time.Now().After(deadline) {
			return &errdefs.Error{Code: "E8000", Op: op, Message: "sandbox " + id + " neither answers nor ends",
				Suggestion: "kill it"}
		}
		select {
		case <-ctx.Done():
			return cancelled(ctx, op)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func cancelled(ctx context.Context, op string) error {
	code := errdefs.Code("E5004")
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = "E5002"
	}
	return &errdefs.Error{Code: code, Op: op, Message: "given up by the caller", Err: context.Cause(ctx)}
}

// orCancelled is err, or that the caller has given up: then nothing else is worth
// to be said. A deadline can pass a moment before ctx ends of it.
func orCancelled(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return cancelled(ctx, op)
	}
	end, ok := ctx.Deadline()
	if ok && !time.Now().Before(end) && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)) {
		return &errdefs.Error{Code: "E5002", Op: op, Message: "given up by the caller", Err: context.DeadlineExceeded}
	}
	return err
}

// answerLimit bounds how long init may take for an answer about itself.
const answerLimit = 2 * time.Second

// describe asks init and the files about a sandbox. errGone: it has ended.
func (p *Provider) describe(ctx context.Context, e *entry) (*providers.Sandbox, error) {
	var conf savedConfig
	if err := e.load(fileConfig, &conf); err != nil {
		return nil, absent(err)
	}
	return p.describeAs(ctx, e, conf)
}

func (p *Provider) describeAs(ctx context.Context, e *entry, conf savedConfig) (*providers.Sandbox, error) {
	sb := &providers.Sandbox{
		ID: e.id, Provider: Name, Template: conf.Template, State: providers.StateStarting,
		CreatedAt: conf.CreatedAt, Metadata: conf.Metadata, Resources: conf.Resources, DefaultUser: conf.User,
		RuntimeVersion: version.Envd,
	}
	var state savedState
	switch err := absent(e.load(fileState, &state)); {
	case errors.Is(err, errGone):
		if e.asleep() {
			return describeAsleep(e.id, &conf), nil
		}
		return sb, nil // its creator has not finished
	case err != nil:
		return nil, err
	}
	actx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	a, err := e.control(actx, controlRequest{Op: opInfo})
	switch {
	case err == nil:
		sb.State = providers.StateRunning
		if a.Paused {
			sb.State = providers.StatePaused
		}
		sb.ExpiresAt = wallTime(a.Deadline)
	case ctx.Err() != nil:
		return nil, cancelled(ctx, "ask sandbox")
	case actx.Err() != nil:
		sb.State = providers.StateUnknown // it lives and does not answer
		sb.ExpiresAt = wallTime(state.Deadline)
		return sb, nil
	default:
		return nil, errGone
	}
	sb.Artifacts = state.Artifacts
	if a.Paused {
		return sb, nil
	}
	token, err := e.token()
	if err != nil {
		return nil, absent(err)
	}
	sb.Data = p.endpoint(e.id, token)
	return sb, nil
}

// List returns one page, newest first. Without States it holds running and
// paused sandboxes and those that do not answer, not those still being made.
func (p *Provider) List(ctx context.Context, req providers.ListRequest) (*providers.Page, error) {
	const op = "list sandboxes"
	limit := req.Limit
	switch {
	case limit == 0:
		limit = 100
	case limit < 0 || limit > 1000:
		return nil, &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("limit %d is out of range: 1 to 1000", limit)}
	}
	after, err := parsePageToken(req.Token)
	if err != nil {
		return nil, err
	}
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if ctx.Err() != nil {
		return nil, cancelled(ctx, op)
	}
	found, err := t.list(req.Metadata, after)
	if err != nil {
		return nil, err
	}
	page := &providers.Page{}
	for at := 0; at < len(found); {
		next := found[at:min(len(found), at+limit-len(page.Sandboxes))]
		at += len(next)
		sbs, err := p.listed(ctx, t, next)
		if err != nil {
			return nil, err
		}
		for _, sb := range sbs {
			if sb != nil && wantState(req.States, sb.State) {
				page.Sandboxes = append(page.Sandboxes, sb)
			}
		}
		if len(page.Sandboxes) == limit {
			if at < len(found) {
				page.Next = pageTokenOf(found[at-1])
			}
			break
		}
	}
	return page, nil
}

// listed describes entries of a list, several at once, because one whose init
// does not answer takes answerLimit; nil stands for those that have ended.
func (p *Provider) listed(ctx context.Context, t *tree, confs []savedConfig) ([]*providers.Sandbox, error) {
	sbs := make([]*providers.Sandbox, len(confs))
	errs := make([]error, len(confs))
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i, c := range confs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				errs[i] = cancelled(ctx, "list sandboxes")
				return
			}
			sbs[i], errs[i] = p.listedOne(ctx, t, c)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sbs, nil
}

func (p *Provider) listedOne(ctx context.Context, t *tree, c savedConfig) (*providers.Sandbox, error) {
	switch err := t.collectID(c.ID); {
	case errors.Is(err, errAsleep):
		return describeAsleep(c.ID, &c), nil
	case isRemains(err):
		p.log.WarnContext(ctx, "remains of a sandbox not removed", "sandbox_id", c.ID, "err", err)
		return nil, nil
	case !errors.Is(err, errBusy):
		return nil, stateError("list sandboxes", "look at sandbox "+c.ID, err)
	}
	e, err := t.openEntry(c.ID)
	if err != nil {
		return nil, nil
	}
	defer e.close()
	sb, err := p.describeAs(ctx, e, c)
	if errors.Is(err, errGone) {
		return nil, nil
	}
	return sb, err
}

func wantState(want []providers.State, s providers.State) bool {
	if len(want) == 0 {
		return s != providers.StateStarting && s != providers.StateStopped
	}
	return slices.Contains(want, s)
}

// Connect returns a sandbox of any process of this user, with its endpoint; it
// resumes a paused one.
func (p *Provider) Connect(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	const op = "connect to sandbox"
	return p.resume(ctx, op, id, req)
}

// SetLifetime moves the end to d from now, to later or to sooner.
func (p *Provider) SetLifetime(ctx context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	const op = "set lifetime"
	if err := checkLifetime(op, d); err != nil {
		return nil, err
	}
	sb, err := p.find(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if err := p.move(ctx, op, sb, controlRequest{Op: opLifetime, Lifetime: d}); err != nil {
		return nil, err
	}
	return sb, nil
}

// move asks init to move the end and notes the new one in sb.
func (p *Provider) move(ctx context.Context, op string, sb *providers.Sandbox, req controlRequest) error {
	a, err := p.request(ctx, op, sb.ID, req)
	if err != nil {
		return err
	}
	sb.ExpiresAt = wallTime(a.Deadline)
	return nil
}

// enter begins an operation on a sandbox whose init lives. The operation ends
// with done; after an error there is none to end.
func (p *Provider) enter(ctx context.Context, op, id string) (t *tree, e *entry, done func(), err error) {
	if err := checkID(op, id); err != nil {
		return nil, nil, nil, err
	}
	t, end, err := p.begin(ctx, op)
	if err != nil {
		return nil, nil, nil, err
	}
	if e, err = t.living(ctx, op, id); err != nil {
		end()
		return nil, nil, nil, err
	}
	return t, e, func() { e.close(); end() }, nil
}

// Report says how the sandbox is isolated.
func (p *Provider) Report(ctx context.Context, id string) (*providers.Report, error) {
	const op = "report on sandbox"
	_, e, done, err := p.enter(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer done()
	var state savedState
	if err := e.load(fileState, &state); err != nil {
		if errors.Is(absent(err), errGone) {
			return nil, &errdefs.Error{Code: "E2009", Op: op, Message: "sandbox " + id + " is still being made"}
		}
		return nil, err
	}
	return &state.Report, nil
}
