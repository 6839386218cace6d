//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
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
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (made *providers.Sandbox, err error) {
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
	if err := order.checkUser(); err != nil {
		return nil, err
	}
	reapStrays()
	p.pool.enter()
	defer func() { p.pool.leave(t, order, made != nil) }()
	if sb, err := p.pool.create(ctx, order); sb != nil || err != nil {
		return sb, err
	}
	var e *entry
	var lock *os.File
	for {
		if r, ok := t.ended(order.id); ok {
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
	sb, err := p.build(ctx, t, e, lock, order)
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
		o.degraded = gvisorDegradations(o.degraded)
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

// build makes the sandbox in its directory, whose lock the caller passes on.
// On an error nothing is left.
func (p *Provider) build(ctx context.Context, t *tree, e *entry, lock *os.File, o *order) (_ *providers.Sandbox, err error) {
	b := &builder{p: p, t: t, e: e, o: o}
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
	conn, err := b.knock(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if b.proc, err = launch(ctx, b.spec); err != nil {
		return nil, err
	}
	b.closeFiles()
	return b.complete(ctx, conn)
}

// complete waits, on the connection that knocked, for the answer of a sandbox
// that has its purpose, and hands the sandbox over to the provider.
func (b *builder) complete(ctx context.Context, conn net.Conn) (*providers.Sandbox, error) {
	p, o := b.p, b.o
	state := savedState{
		initID:    newInitID(b.proc.pid, b.proc.startTime),
		Deadline:  b.conf.Deadline,
		Report:    p.report(o, b.proc.report, b.spec.volumes),
		Artifacts: b.artifacts,
	}
	if err := b.e.save(fileState, state); err != nil {
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
	if err := p.adopt(b); err != nil {
		return nil, err
	}
	b.forgetSleep()
	return sb, nil
}

// builder makes one sandbox and knows what to undo.
type builder struct {
	p *Provider
	t *tree
	e *entry
	o *order

	spare     bool          // for the pool: nobody has asked for it yet
	handover  *net.UnixConn // where init of a spare waits for its purpose
	saved     savedConfig
	conf      serveConfig
	spec      *launchSpec
	artifacts map[string]string
	group     *cgroup
	files     []*os.File // closed when init has its copies
	lifeline  *os.File   // our end
	proc      *initProc
	woken     bool // awake was called
}

func (b *builder) keep(f *os.File) *os.File {
	b.files = append(b.files, f)
	return f
}

func (b *builder) closeFiles() {
	for _, f := range b.files {
		f.Close()
	}
	b.files = nil
	if b.group != nil {
		b.group.close()
		b.group = nil
	}
}

// undo removes everything, whatever state it is in.
func (b *builder) undo() error {
	err := b.undoEntry()
	if b.proc == nil && b.saved.ID != "" && b.saved.Block >= 0 { // perhaps nothing says that it was ours
		err = errors.Join(err, releaseLease(b.t.ids, b.saved.Block))
	}
	return err
}

func (b *builder) undoEntry() error {
	// While the lock is held, and before init sees that we are gone.
	if err := b.unwake(); err != nil {
		b.p.log.Warn("a sandbox that hibernated may be lost", "sandbox_id", b.o.id, "err", err)
	}
	if b.lifeline != nil {
		b.lifeline.Close()
	}
	if b.handover != nil {
		b.handover.Close()
	}
	if b.proc != nil { // nobody can have paused it
		closeListeners(b.proc.listeners)
		_ = b.proc.process.Kill() // an error means that it has ended
		_, _ = b.proc.process.Wait()
	}
	// The lock stays ours until the remains are gone; it is the first file.
	for len(b.files) > 1 {
		last := len(b.files) - 1
		b.files[last].Close()
		b.files = b.files[:last]
	}
	if b.o.asleep != nil {
		return b.backToSleep()
	}
	if len(b.files) == 0 { // init had the lock
		err := b.t.collectEnded(b.o.id)
		if errors.Is(err, errBusy) {
			err = nil // somebody else collects
		}
		return err
	}
	err := b.t.remove(b.e, false)
	b.closeFiles()
	if errors.Is(err, errTaken) {
		err = nil
	}
	return err
}

// prepare makes everything that init is given.
func (b *builder) prepare(ctx context.Context) error {
	o := b.o
	if err := b.p.chooseRoot(ctx, b.t, o); err != nil {
		return err
	}
	binds, err := b.addArtifacts(ctx)
	if err != nil {
		return err
	}
	b.saved = savedConfig{ID: o.id, Engine: o.engine, Root: o.savedRoot(), Cgroups: planDirs(o.groups), Block: -1, Network: o.allow.saved()}
	b.setPurpose()
	lease := (*os.File)(nil)
	if o.mapping == mapBlock {
		if b.saved.Block, lease, err = leaseBlock(b.t.ids); err != nil {
			return err
		}
		b.keep(lease)
	}
	if err := b.holdLayers(ctx); err != nil {
		return err
	}
	volumes, err := b.openVolumes()
	if err != nil {
		return err
	}
	if err := b.makeScratch(); err != nil {
		return err
	}
	token := randomText(32)
	if o.asleep != nil {
		token = o.asleep.token
	}
	b.conf.ID, b.conf.Token = o.id, token
	b.conf.CPUMilli, b.conf.Memory = o.limits.cpuMilli, o.limits.memory
	if o.onDisk() {
		b.conf.Disk = o.limits.scratch
	}
	b.conf.Layered, b.conf.Woken = len(o.layers) > 0, o.asleep != nil
	if err := b.e.dir.write(fileToken, []byte(b.conf.Token)); err != nil {
		return err
	}
	b.spec = &launchSpec{
		id: o.id, mapping: idMapping{kind: o.mapping, block: max(b.saved.Block, 0)}, network: o.network, allow: o.allow,
		scratchBytes: o.limits.scratch, shmBytes: o.shm(), scratchDir: b.scratchPath(), binds: binds, expose: b.p.exposed(o), root: o.root,
		volumes: volumes, places: o.places, placesOfRoot: o.User == "root",
		debug: o.Debug, exe: o.exe, lock: b.files[0], cpus: o.limits.affinity(),
		layers: b.t.stackOf(o.layers), kept: o.kept,
	}
	if o.engine == engineGVisor {
		b.spec.gvisor = &gvisorSpec{runsc: o.runsc, processes: o.limits.processes}
		b.spec.mapping.asRoot = true
	}
	b.conf.Writable = b.spec.writable()
	b.conf.Listeners = o.allow.kept()
	if err := b.openFiles(lease); err != nil {
		return err
	}
	if err := b.limit(); err != nil {
		return err
	}
	if o.engine == engineGVisor {
		if b.conf.GVisor, err = b.spec.guestOf(b.conf); err != nil {
			return err
		}
	}
	b.spec.config, err = json.Marshal(b.conf)
	return err
}

// setPurpose fills in what does not shape the construction.
func (b *builder) setPurpose() {
	o := b.o
	b.saved.Request, b.saved.Template, b.saved.CreatedAt, b.saved.Metadata = o.digest, o.madeFrom(), time.Now().Round(0), o.Metadata
	b.saved.Resources = providers.Resources{CPUMilli: o.limits.cpuMilli, MemoryMiB: o.limits.memory >> 20,
		DiskMiB: o.limits.scratch >> 20, Processes: o.limits.processes,
		DiskRead: o.limits.diskRead, DiskWrite: o.limits.diskWrite}
	b.saved.Detached, b.saved.User = o.Detached, o.User
	b.conf.purpose = purpose{Env: o.allow.environment(o.Env), User: o.User, WorkDir: o.WorkDir, Detached: o.Detached, Deadline: bootAfter(o.Lifetime)}
	b.conf.Request, _ = json.Marshal(o.again) // as requestDigest has done
	b.saved.fileSet = fileSet{Layers: o.layers, Places: savePlaces(o.places), Mapping: o.mapping}
	if o.asleep != nil {
		b.saved.CreatedAt = o.asleep.created
	}
}

// saveConfig writes down what there is to remove. The file of a sandbox of the
// pool has another name, by which nobody finds the sandbox.
func (b *builder) saveConfig() error {
	if b.spare {
		return b.e.save(fileSpare, b.saved)
	}
	return b.e.save(fileConfig, b.saved)
}

func (b *builder) addArtifacts(ctx context.Context) ([]bind, error) {
	if len(b.o.Artifacts) == 0 {
		return nil, nil
	}
	b.artifacts = map[string]string{}
	var binds []bind
	for _, a := range b.o.Artifacts {
		source, err := b.p.store.add(ctx, a)
		if err != nil {
			return nil, err
		}
		target := artifactDir + "/" + a.Digest
		if _, dup := b.artifacts[a.Digest]; !dup {
			b.artifacts[a.Digest] = target
			binds = append(binds, bind{source: source, target: target, exec: true})
		}
	}
	return binds, nil
}

// openFiles makes the sockets and files that init gets open: it cannot reach
// the directory of its sandbox.
func (b *builder) openFiles(lease *os.File) error {
	var err error
	open := func(to **os.File, f func() (*os.File, error)) {
		if err != nil {
			return
		}
		if *to, err = f(); err == nil {
			b.keep(*to)
		}
	}
	var note *os.File
	create := func(name string) func() (*os.File, error) {
		return func() (*os.File, error) {
			return b.e.dir.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600)
		}
	}
	open(&b.spec.listener, func() (*os.File, error) { return b.e.listen(fileRuntime) })
	open(&b.spec.control, func() (*os.File, error) { return b.e.listen(fileControl) })
	open(&b.spec.log, create(fileLog))
	end := fileEnd
	if b.o.asleep != nil {
		end = fileNewEnd
	}
	open(&note, create(end))
	if lease == nil {
		open(&lease, func() (*os.File, error) { return os.Open(os.DevNull) })
	}
	open(&b.spec.lifeline, func() (*os.File, error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, err
		}
		b.lifeline = os.NewFile(uintptr(p[1]), "lifeline")
		return os.NewFile(uintptr(p[0]), "lifeline"), nil
	})
	if b.spare {
		open(&b.spec.handover, func() (theirs *os.File, err error) {
			b.handover, theirs, err = controlPair()
			return theirs, err
		})
	}
	b.spec.extra = []*os.File{extraNote: note, extraLease: lease}
	return err
}

// limit makes the control groups, and sets what replaces those that are not
// to be had.
func (b *builder) limit() error {
	o := b.o
	host := b.p.groups()
	if len(o.groups) > 0 {
		g, err := createCgroups(o.groups, o.cgroupLimits(host.disks))
		if err != nil {
			return err
		}
		b.group, b.spec.cgroup = g, g
		for _, f := range g.files {
			b.spec.extra = append(b.spec.extra, f.File)
			b.conf.Groups = append(b.conf.Groups, f.kind)
		}
	}
	if b.conf.Freezer = host.mechanism(limitFreezer); b.conf.Freezer == "" {
		b.conf.Freezer = bySignals
	}
	if host.mechanism(limitMemory) == "" {
		b.conf.SampleMemory = o.limits.memory
	}
	if host.mechanism(limitPids) == "" {
		b.spec.nprocLimit = o.limits.processes
	}
	if host.mechanism(limitCPU) == "" {
		b.spec.affinity = o.limits.affinity()
	}
	return nil
}

// cgroupLimits are those of the control groups of the sandbox.
func (o *order) cgroupLimits(disks []string) cgroupLimits {
	l := o.limits.cgroup(disks)
	if o.engine == engineGVisor {
		l.pids = gvisorTasks(l.pids)
	}
	return l
}

func (l limits) cgroup(disks []string) cgroupLimits {
	return cgroupLimits{memory: l.memory, pids: l.processes, cpuMilli: l.cpuMilli,
		diskRead: l.diskRead, diskWrite: l.diskWrite, disks: disks}
}
