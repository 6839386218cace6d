//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// artifactDir is where artifacts are inside.
const artifactDir = "/run/sandbox/bin"

// defaultUser runs commands when nobody else is asked for.
const defaultUser = "user"

// usersInside are those of the synthetic /etc/passwd that can run commands.
var usersInside = []string{defaultUser, "root"}

// Create makes a sandbox and returns when its runtime answers. Cancelling ctx
// at any point removes what was made. A repetition with the same RequestID
// returns the same sandbox while it lives, and the reason of its end
// afterwards; with other parameters it is E2011.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	if req.Template != "" && req.Template != baseTemplate {
		return p.createFromTemplate(ctx, req)
	}
	return p.create(ctx, req, nil)
}

// create is Create for the template base. from, unless nil, says what the sandbox
// starts with. A file of this machine that is replaced while it is being shown to
// a sandbox (package managers do that) costs another try.
func (p *Provider) create(ctx context.Context, req providers.CreateRequest, from func(*tree, *order) error) (*providers.Sandbox, error) {
	for try := 1; ; try++ {
		sb, err := p.createOnce(ctx, req, from)
		if try == maxTries || !wasReplaced(err) {
			return sb, err
		}
		p.log.DebugContext(ctx, "a file was replaced while it was shown to a sandbox: once more", "err", err)
	}
}

const maxTries = 3

// wasReplaced reports whether a creation failed because what was found and opened
// had no name any more when it was mounted.
func wasReplaced(err error) bool {
	ie, ok := errors.AsType[*IsolationError](err)
	return ok && errors.Is(ie.Err, fs.ErrNotExist) && strings.HasPrefix(ie.Step, "attach ")
}

func (p *Provider) createOnce(ctx context.Context, req providers.CreateRequest, from func(*tree, *order) error) (made *providers.Sandbox, err error) {
	const op = "create sandbox"
	if ctx.Err() != nil {
		return nil, cancelled(ctx, op)
	}
	defer func() { err = orCancelled(ctx, op, err) }()
	order, err := p.order(ctx, req)
	if err != nil {
		return nil, err
	}
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := order.startFrom(t, p); err != nil {
		return nil, err
	}
	if from != nil {
		order.poolKey = ""
		if err := from(t, order); err != nil {
			return nil, err
		}
	}
	if order.Image != "" && order.imageDigest == "" && findImage == nil { // what a template or snapshot is of is here
		return nil, noImages()
	}
	if err := order.checkUser(); err != nil {
		return nil, err
	}
	reapStrays()
	p.pool.enter()
	defer func() { p.pool.leave(t, order, made != nil) }()
	if sb, err := p.pool.create(ctx, order); sb != nil || err != nil {
		return sb, err
	}
	cradle := order.makeCradle() // it takes longest
	defer cradle.close()
	var e *entry
	var lock *os.File
	for {
		if r, ok := order.endedBefore(t); ok {
			if r.Request != order.digest {
				return nil, otherParameters(order.id)
			}
			return nil, t.gone(op, order.id)
		}
		if e, lock, err = t.newEntry(order.id); !errors.Is(err, errBusy) {
			break
		}
		sb, err := p.repeated(ctx, t, order)
		if !errors.Is(err, errGone) {
			return sb, err
		}
	}
	if err != nil {
		return nil, stateError(op, "make the directory of the sandbox", err)
	}
	defer e.close()
	sb, err := p.build(ctx, t, e, lock, cradle, order)
	if err == nil && order.template != nil {
		sb, err = p.started(ctx, sb, order.template)
	}
	return sb, stateError(op, "make sandbox "+order.id, orCancelled(ctx, op, err))
}

// order is a request that was checked, with everything decided that can be
// before something is made.
type order struct {
	providers.CreateRequest
	id, digest string
	network    string
	allow      *netPlan // only with netList
	limits     limits
	mapping    mapKind
	engine     string
	runsc      string // with engineGVisor
	groups     []cgroupPlan
	degraded   []providers.Degradation
	places     []place
	exe        *executable
	poolKey    string                  // empty: not for a sandbox of the pool
	root       rootTree                // filled in when there is a directory for it
	asked      string                  // User of the request
	again      providers.CreateRequest // what a wake starts from
	made       string                  // what lists name; empty: the image or template
	layers     []string                // uppermost first
	kept       []string                // places that layers have
	asleep     *sleeper                // nil: a new sandbox

	imageDigest string // of Image; empty: what it stands for now

	build    bool            // of a template
	template *model.Template // what its template says; nil: none was built for it
}

func (p *Provider) order(ctx context.Context, req providers.CreateRequest) (*order, error) {
	o := &order{CreateRequest: req, id: sandboxID(req.RequestID), digest: requestDigest(req), asked: req.User, again: req}
	if err := checkRequest(&o.CreateRequest); err != nil {
		return nil, err
	}
	var err error
	if err = p.orderNetwork(o); err != nil {
		return nil, err
	}
	if o.places, err = checkPlaces(&o.CreateRequest, p.exposed(o)); err != nil {
		return nil, err
	}
	if err = p.orderLimits(ctx, o); err != nil {
		return nil, err
	}
	can, err := inspect()
	if err != nil {
		return nil, err
	}
	exe, err := p.runtimeFor()
	if err != nil {
		return nil, err
	}
	o.mapping, o.exe = can.mapping, exe
	if err := p.chooseEngine(ctx, o); err != nil {
		return nil, err
	}
	if o.User == "" {
		o.User = defaultUser
	}
	if o.mapping == mapSingle && o.engine == engineNative && o.User != defaultUser {
		return nil, &errdefs.Error{Code: "E3008", Op: "create sandbox",
			Message:    "user " + o.User + " is not available: without newuidmap and sub-ids a sandbox has the user " + defaultUser + " only",
			Suggestion: "install newuidmap and give yourself sub-ids in /etc/subuid and /etc/subgid, or run as root"}
	}
	host := p.groups()
	if err := checkRates(host, o.limits); err != nil {
		return nil, err
	}
	o.degraded = append(o.degraded, degradations(host, can, exe.how, o)...)
	if o.engine == engineGVisor {
		o.degraded = gvisorDegradations(o.degraded, o.allow)
	}
	if err := checkRequire(req.Require, o.degraded); err != nil {
		return nil, err
	}
	o.groups = host.plan(o.id, o.cgroupLimits(host.disks))
	if o.engine == engineNative {
		o.poolKey = p.pool.key(&o.CreateRequest)
	}
	return o, nil
}

// endedBefore looks for the end of the sandbox that the same request has made.
func (o *order) endedBefore(t *tree) (endRecord, bool) {
	if o.NewID || o.RequestID == "" {
		return endRecord{}, false
	}
	return t.ended(o.id)
}

// checkUser refuses a user that the tree of the host does not have. Others are
// looked into later.
func (o *order) checkUser() error {
	if slices.Contains(usersInside, o.User) || o.Image != "" || o.Root.Dir != "" {
		return nil
	}
	return &errdefs.Error{Code: "E3008", Op: "create sandbox",
		Message:    "a sandbox of provider local has no user " + o.User + "; it has " + strings.Join(usersInside, ", "),
		Suggestion: "leave User empty for " + defaultUser}
}

// requestDigest identifies the parameters of a request.
func requestDigest(req providers.CreateRequest) string {
	req.RequestID, req.NewID = "", false
	b, err := json.Marshal(req) // maps are written in order
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func otherParameters(id string) error {
	return badOption("request id was used before, with other parameters, for sandbox "+id,
		"use a new request id for every creation that is not a repetition")
}

// repeated answers a request whose sandbox is there already. errGone: it was
// the remains of one that never became ready, and they are gone.
func (p *Provider) repeated(ctx context.Context, t *tree, o *order) (*providers.Sandbox, error) {
	const op = "create sandbox"
	for deadline := time.Now().Add(killLimit); ; {
		c, err := t.config(o.id)
		switch {
		case err == nil && c.Request != o.digest:
			return nil, otherParameters(o.id)
		case err == nil:
			return p.Connect(ctx, o.id, providers.ConnectRequest{})
		case !errors.Is(absent(err), errGone):
			return nil, err
		case t.collectID(o.id) == nil:
			return nil, errGone
		case time.Now().After(deadline):
			return nil, &errdefs.Error{Code: "E2009", Op: op, Message: "another process does not finish making sandbox " + o.id}
		}
		select {
		case <-ctx.Done():
			return nil, cancelled(ctx, op)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// build makes the sandbox in its directory, whose lock the caller passes on; the
// cradle, unless nil, stays the caller's.
// On an error nothing is left.
func (p *Provider) build(ctx context.Context, t *tree, e *entry, lock *os.File, cradle *cradle, o *order) (_ *providers.Sandbox, err error) {
	b := &builder{p: p, t: t, e: e, o: o, chosen: -1}
	b.keep(lock)
	defer func() {
		if err == nil {
			return
		}
		if uerr := b.undo(); uerr != nil {
			err = errors.Join(err, uerr)
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if cradle.ready() {
		b.spec.cradle = cradle
	}
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	b.spec.rest = func() (err error) {
		if err = b.finish(); err == nil {
			conn, err = b.knock(ctx)
		}
		return err
	}
	b.spec.meanwhile = func(init *initProc) (err error) {
		b.saveState, err = b.e.draft(fileState, b.state(init), nil)
		return err
	}
	if b.proc, err = launch(ctx, b.spec); err != nil {
		return nil, err
	}
	b.closeFiles()
	return b.complete(ctx, conn)
}

// state is what is written down of a sandbox that is ready.
func (b *builder) state(init *initProc) savedState {
	return savedState{
		initID:    newInitID(init.pid, init.startTime),
		Deadline:  b.conf.Deadline,
		Report:    b.p.report(b.o, init.report, b.spec.volumes),
		Artifacts: b.artifacts,
	}
}

// complete waits, on the connection that knocked, for the answer of a sandbox
// that has its purpose, and hands the sandbox over to the provider.
func (b *builder) complete(ctx context.Context, conn net.Conn) (*providers.Sandbox, error) {
	p, o := b.p, b.o
	if b.saveState == nil {
		var err error
		if b.saveState, err = b.e.draft(fileState, b.state(b.proc), b.reserved[fileState]); err != nil {
			return nil, err
		}
	}
	if err := b.saveState(); err != nil {
		return nil, err
	}
	if err := answered(ctx, conn); err != nil {
		return nil, err
	}
	if len(o.degraded) > 0 {
		p.warn.Do(func() {
			var what []string
			for _, d := range o.degraded {
				what = append(what, d.What)
			}
			p.log.WarnContext(ctx, "this machine cannot enforce everything; the report of a sandbox says why", "sandbox_id", o.id, "degraded", what)
		})
	}
	sb := &providers.Sandbox{
		ID: o.id, Provider: Name, Template: o.madeFrom(), State: providers.StateRunning,
		CreatedAt: b.saved.CreatedAt, ExpiresAt: wallTime(b.conf.Deadline), Metadata: b.saved.Metadata,
		Resources: b.saved.Resources, Data: p.endpoint(o.id, providers.Secret(b.conf.Token)),
		Artifacts: b.artifacts, DefaultUser: o.User, RuntimeVersion: version.Envd,
	}
	if err := b.awake(); err != nil {
		return nil, err
	}
	if err := p.adopt(ctx, b); err != nil {
		return nil, err
	}
	b.forgetSleep()
	return sb, nil
}
