//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

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
	lease     *os.File   // nil: no block of ids
	chosen    int        // a block that is not leased yet; negative: none
	proc      *initProc
	saveState func() error         // nil: nothing was drafted
	reserved  map[string]*reserved // of a spare, for what is written when it has its purpose
	woken     bool                 // awake was called
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
	b.forgetBlock()
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
	for _, r := range b.reserved {
		r.close()
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

// prepare makes what the process of init cannot begin without, and writes down
// what there will be to remove.
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
	if o.mapping == mapBlock {
		if err := b.chooseBlock(); err != nil {
			return err
		}
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
	b.conf.Layered, b.conf.Woken = len(o.layers) > 0 || o.build, o.asleep != nil
	b.spec = &launchSpec{
		id: o.id, mapping: idMapping{kind: o.mapping, block: max(b.saved.Block, 0)}, network: o.network, allow: o.allow,
		scratchBytes: o.limits.scratch, shmBytes: o.shm(), scratchDir: b.scratchPath(), binds: binds, expose: b.p.exposed(o), root: o.root,
		volumes: volumes, places: o.places, placesOfRoot: o.User == "root",
		build: o.build, debug: o.Debug, exe: o.exe, lock: b.files[0], cpus: o.limits.affinity(),
		layers: b.t.stackOf(o.layers), kept: o.kept,
	}
	if o.engine == engineGVisor {
		b.spec.gvisor = &gvisorSpec{runsc: o.runsc, processes: o.limits.processes}
		b.spec.mapping.asRoot = true
	}
	b.conf.Writable = b.spec.writable()
	b.conf.Listeners = o.allow.kept()
	if err := b.openFirst(); err != nil {
		return err
	}
	return b.limit()
}

// finish makes the rest of what init is given.
func (b *builder) finish() (err error) {
	if err := b.leaseChosen(); err != nil {
		return err
	}
	if err := b.openRest(); err != nil {
		return err
	}
	if b.group != nil {
		if err := b.group.add(slices.DeleteFunc(slices.Clone(b.o.groups), cgroupPlan.home), b.o.cgroupLimits(b.p.groups().disks)); err != nil {
			return err
		}
		for _, f := range b.group.files {
			b.spec.extra = append(b.spec.extra, f.File)
			b.conf.Groups = append(b.conf.Groups, f.kind)
		}
	}
	if b.o.engine == engineGVisor {
		if b.conf.GVisor, err = b.spec.guestOf(b.conf); err != nil {
			return err
		}
	}
	b.spec.config, err = json.Marshal(b.conf)
	return err
}

// chooseBlock chooses a block of ids. Where files are given to its owner before
// init starts it is leased as well, else in finish.
func (b *builder) chooseBlock() (err error) {
	if !b.o.onDisk() {
		b.saved.Block, err = b.t.blocks.choose(b.t.ids)
		b.chosen = b.saved.Block
		return err
	}
	if b.saved.Block, b.lease, err = leaseBlock(b.t.ids); err == nil {
		b.keep(b.lease)
	}
	return err
}

// forgetBlock lets other creations choose the block, which is leased, or not needed.
func (b *builder) forgetBlock() {
	if b.chosen >= 0 {
		b.t.blocks.forget(b.chosen)
		b.chosen = -1
	}
}

// leaseChosen leases the block that was chosen, or another one if somebody was
// quicker.
func (b *builder) leaseChosen() error {
	if b.saved.Block < 0 || b.lease != nil {
		return nil
	}
	defer b.forgetBlock()
	var err error
	if b.lease, err = b.t.ids.newLock(leaseName(b.saved.Block)); err == nil {
		b.keep(b.lease)
		return nil
	}
	if !errors.Is(err, errBusy) {
		return err
	}
	if b.saved.Block, b.lease, err = leaseBlock(b.t.ids); err != nil {
		return err
	}
	b.keep(b.lease)
	b.spec.mapping.block = b.saved.Block
	return b.saveConfig()
}

// setPurpose fills in what does not shape the construction.
func (b *builder) setPurpose() {
	o := b.o
	b.saved.Request, b.saved.Template, b.saved.CreatedAt, b.saved.Metadata = o.digest, o.madeFrom(), time.Now().Round(0), o.Metadata
	b.saved.Resources = providers.Resources{CPUMilli: o.limits.cpuMilli, MemoryMiB: o.limits.memory >> 20,
		DiskMiB: o.limits.scratch >> 20, Processes: o.limits.processes,
		DiskRead: o.limits.diskRead, DiskWrite: o.limits.diskWrite}
	b.saved.Detached, b.saved.User = o.Detached, o.User
	if b.saved.Compiled = o.template; o.template != nil {
		b.conf.Template, _ = json.Marshal(o.template) // as it will be once more for the file
	}
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
	done, err := b.e.draft(fileConfig, b.saved, b.reserved[fileConfig])
	if err != nil {
		return err
	}
	return done()
}

// reserve makes the files that assign will fill.
func (b *builder) reserve() (err error) {
	b.reserved = map[string]*reserved{}
	for _, name := range []string{fileConfig, fileState} {
		if b.reserved[name], err = b.e.dir.reserve(name); err != nil {
			return err
		}
	}
	return nil
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

// open keeps the file that f makes until init has its copy, and stores it in to.
func (b *builder) open(to **os.File, f func() (*os.File, error)) (err error) {
	if *to, err = f(); err == nil {
		b.keep(*to)
	}
	return err
}

// append opens a file of the sandbox for writing at its end.
func (b *builder) append(name string) func() (*os.File, error) {
	return func() (*os.File, error) {
		return b.e.dir.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600)
	}
}

// openFirst makes what init has from its first moment on.
func (b *builder) openFirst() error {
	err := b.open(&b.spec.lifeline, func() (*os.File, error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, err
		}
		b.lifeline = os.NewFile(uintptr(p[1]), "lifeline")
		return os.NewFile(uintptr(p[0]), "lifeline"), nil
	})
	if err == nil && b.spare {
		err = b.open(&b.spec.handover, func() (theirs *os.File, err error) {
			b.handover, theirs, err = controlPair()
			return theirs, err
		})
	}
	return err
}

// openRest makes the sockets and files that init is sent: it cannot reach the
// directory of its sandbox.
func (b *builder) openRest() error {
	err := b.e.dir.write(fileToken, []byte(b.conf.Token))
	if err == nil {
		err = b.open(&b.spec.listener, func() (*os.File, error) { return b.e.listen(fileRuntime) })
	}
	if err == nil {
		err = b.open(&b.spec.control, func() (*os.File, error) { return b.e.listen(fileControl) })
	}
	if err == nil {
		err = b.open(&b.spec.log, b.append(fileLog))
	}
	end := fileEnd
	if b.o.asleep != nil {
		end = fileNewEnd
	}
	var note *os.File
	if err == nil {
		err = b.open(&note, b.append(end))
	}
	lease := b.lease
	if err == nil && lease == nil {
		err = b.open(&lease, func() (*os.File, error) { return os.Open(os.DevNull) })
	}
	b.spec.extra = []*os.File{extraNote: note, extraLease: lease}
	return err
}

// limit makes the control groups that init is born in, and sets what replaces
// those that are not to be had.
func (b *builder) limit() error {
	o := b.o
	host := b.p.groups()
	if len(o.groups) > 0 {
		homes := slices.DeleteFunc(slices.Clone(o.groups), func(p cgroupPlan) bool { return !p.home() })
		g, err := createCgroups(homes, o.cgroupLimits(host.disks))
		if err != nil {
			return err
		}
		b.group, b.spec.cgroup = g, g
	}
	if b.conf.Freezer = host.mechanism(limitFreezer); b.conf.Freezer == "" {
		b.conf.Freezer = bySignals
	}
	if host.mechanism(limitMemory) == "" {
		b.conf.SampleMemory = o.limits.memory
	}
	if host.mechanism(limitPids) == "" {
		b.conf.Threads = threadReserve()
		b.spec.nprocLimit = o.limits.processes + int64(b.conf.Threads)
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
