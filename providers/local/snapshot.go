//go:build linux

package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

var _ providers.Snapshotter = (*Provider)(nil)

// A snapshot is snapshots/<id>/meta.json, which names the layers that hold its
// files.
const (
	fileMeta = "meta.json"

	snapshotPrefix = "snap" // tells its id from that of a sandbox

	// maxLayers is how many layers a sandbox starts from at most; of more than
	// these one is made.
	maxLayers = 32
)

// savedSnapshot is meta.json.
type savedSnapshot struct {
	ID        string            `json:"id"`
	Name      string            `json:"name,omitempty"`
	SandboxID string            `json:"sandbox_id"`
	CreatedAt time.Time         `json:"created_at"`
	Size      int64             `json:"size"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Template  string            `json:"template"`
	Root      savedRoot         `json:"root,omitzero"` // the file tree that the files lie in
	Compiled  *model.Template   `json:"compiled,omitempty"`
	fileSet
}

// fileSet is what a sandbox starts with.
type fileSet struct {
	Layers  []string     `json:"layers,omitempty"` // the uppermost first
	Places  []savedPlace `json:"places,omitempty"` // beside those of every sandbox
	Mapping mapKind      `json:"mapping,omitempty"`
}

type savedPlace struct {
	Path string `json:"path"`
	Dir  bool   `json:"dir,omitempty"`
}

// Snapshot keeps the files that a sandbox can write, but for those in /run,
// /dev/shm and volumes: nothing of its processes, environment, limits or network.
// Everything inside stops while the files are copied, and goes on; a paused
// sandbox stays paused. Calls that come meanwhile wait. A file that the file API
// is writing at that moment may be kept half.
//
// A sandbox that starts from it has the same file tree around them: the image as
// it was, also when its reference stands for another one meanwhile, the root
// directory, and the exposed paths.
//
// Modes, owners, times, links, holes and attributes of users are kept; set-uid
// bits, devices, pipes and sockets are not. A sandbox whose whole tree can be
// written is E8004. When it fails, or ctx ends first, nothing is left.
func (p *Provider) Snapshot(ctx context.Context, id string, req providers.SnapshotRequest) (*providers.Snapshot, error) {
	const op = "take snapshot"
	if len(req.Name) > maxNameBytes || strings.ContainsRune(req.Name, 0) {
		return nil, &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("name of a snapshot has %d bytes or a NUL; at most %d", len(req.Name), maxNameBytes)}
	}
	if err := checkMetadata(req.Metadata); err != nil {
		return nil, err
	}
	t, e, conf, done, err := p.enterToKeep(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer done()
	c, err := t.takeFiles(ctx, e, opSnapshot, conf)
	if err != nil {
		return nil, t.captureError(ctx, op, id, err)
	}
	defer c.close()
	if c.dropped > 0 {
		p.log.InfoContext(ctx, "a snapshot leaves out pipes, sockets and devices", "sandbox_id", id, "count", c.dropped)
	}
	s := savedSnapshot{
		ID: snapshotPrefix + randomText(idLength), Name: req.Name, SandboxID: id, CreatedAt: time.Now().Round(0), Size: c.size,
		Metadata: req.Metadata, Template: conf.Template, Root: conf.Root, Compiled: conf.Compiled, fileSet: conf.fileSet,
	}
	err = t.keep(ctx, c, &s.fileSet, func() error { return t.saveSnapshot(&s) })
	if err != nil {
		return nil, t.captureError(ctx, op, id, err)
	}
	return s.public(), nil
}

// enterToKeep begins an operation that keeps the files of a sandbox, once it is
// made, and returns its settings; see enter.
func (p *Provider) enterToKeep(ctx context.Context, op, id string) (*tree, *entry, *savedConfig, func(), error) {
	if _, err := p.ready(ctx, op, id); err != nil {
		return nil, nil, nil, nil, err
	}
	t, e, done, err := p.enter(ctx, op, id)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	conf := &savedConfig{}
	if err = e.load(fileConfig, conf); err != nil {
		err = t.settle(ctx, op, id)
	} else {
		err = conf.canKeep(op)
	}
	if err != nil {
		done()
		return nil, nil, nil, nil, err
	}
	return t, e, conf, done, nil
}

// canKeep refuses a sandbox of which more is written than what is kept.
func (c *savedConfig) canKeep(op string) error {
	if c.Engine == engineGVisor {
		return &errdefs.Error{Code: "E8004", Op: op, Message: "the files of a sandbox in gVisor cannot be kept",
			Suggestion: "create it with isolation " + isolationContainer}
	}
	if !c.Root.Writable {
		return nil
	}
	return &errdefs.Error{Code: "E8004", Op: op, Message: "the whole file tree of this sandbox can be written, and only the usual places can be kept",
		Suggestion: "create it without a writable root, and work in /home/user"}
}

// captureError says why the files of a sandbox could not be kept.
func (t *tree) captureError(ctx context.Context, op, id string, err error) error {
	if gone := orCancelled(ctx, op, err); gone != err {
		return gone
	}
	switch {
	case errdefs.CodeOf(err) != "":
		return err
	case errors.Is(err, errEnded), t.collectID(id) == nil:
		return t.settle(ctx, op, id)
	}
	return stateError(op, "keep the files of sandbox "+id, err)
}

// keep adds what was captured to the files that its sandbox had started with, and
// calls name, which writes down who uses them.
func (t *tree) keep(ctx context.Context, c *captured, files *fileSet, name func() error) error {
	layers := files.Layers
	var merged *layer
	mergedName := ""
	if c.layer != nil {
		layers = append([]string{c.name}, layers...)
	}
	if len(layers) > maxLayers {
		var err error
		if merged, mergedName, err = t.squash(ctx, c.layer, layers); err != nil {
			return explainCapture(err)
		}
		defer merged.discard()
	}
	lock, err := t.lockLayers(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	newest, newestName := c.layer, c.name
	if merged != nil {
		newest, newestName = merged, mergedName
		layers = []string{mergedName}
	}
	if newest != nil {
		err = newest.publish(newestName)
	}
	if err == nil {
		files.Layers, files.Mapping = layers, mappingKind()
		err = name()
	}
	if err != nil && newest != nil {
		newest.unpublish(newestName)
	}
	return err
}

// saveSnapshot writes meta.json. It survives a power failure, or is not there.
func (t *tree) saveSnapshot(s *savedSnapshot) (err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := newPrefix + s.ID
	if err := t.snapshots.mkdir(tmp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.removeSnapshot(tmp))
		}
	}()
	d, err := t.snapshots.sub(tmp)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.writeSynced(fileMeta, b); err != nil {
		return err
	}
	if err := unix.Renameat(t.snapshots.fd(), tmp, t.snapshots.fd(), s.ID); err != nil {
		return err
	}
	tmp = s.ID
	return unix.Fsync(t.snapshots.fd())
}

// writeSynced is like write, and survives a power failure.
func (d *folder) writeSynced(name string, content []byte) error {
	tmp := "." + name + "." + randomText(8)
	f, err := d.open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(d.fd(), tmp, d.fd(), name)
	}
	if err != nil {
		_ = d.remove(tmp) // the first error says more
		return err
	}
	return unix.Fsync(d.fd())
}

func (t *tree) removeSnapshot(name string) error {
	d, err := t.snapshots.sub(name)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.clear(); err != nil {
		return err
	}
	return unix.Unlinkat(t.snapshots.fd(), name, unix.AT_REMOVEDIR)
}

// snapshot reads meta.json; fs.ErrNotExist when there is none.
func (t *tree) snapshot(id string) (*savedSnapshot, error) {
	d, err := t.snapshots.sub(id)
	if err != nil {
		return nil, err
	}
	defer d.close()
	b, err := d.read(fileMeta, maxSaved)
	if err != nil {
		return nil, err
	}
	s := &savedSnapshot{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s of snapshot %s: %w", fileMeta, id, err)
	}
	s.ID = id
	return s, nil
}

func (s *savedSnapshot) public() *providers.Snapshot {
	return &providers.Snapshot{ID: s.ID, Name: s.Name, SandboxID: s.SandboxID, CreatedAt: s.CreatedAt, Size: s.Size, Metadata: s.Metadata}
}

func isSnapshotID(id string) bool {
	rest, ok := strings.CutPrefix(id, snapshotPrefix)
	return ok && checkID("", rest) == nil
}

func noSnapshot(op, id string) error {
	return &errdefs.Error{Code: "E2020", Op: op, Message: fmt.Sprintf("no snapshot %q", clip(id)), Suggestion: "list the snapshots"}
}

// findSnapshot reads a snapshot; E2020 when it is not there.
func (t *tree) findSnapshot(op, id string) (*savedSnapshot, error) {
	if !isSnapshotID(id) {
		return nil, noSnapshot(op, id)
	}
	s, err := t.snapshot(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noSnapshot(op, id)
	}
	return s, err
}

// ListSnapshots returns one page, newest first.
func (p *Provider) ListSnapshots(ctx context.Context, req providers.SnapshotListRequest) (*providers.SnapshotPage, error) {
	const op = "list snapshots"
	limit := cmp.Or(req.Limit, 100)
	if limit < 1 || limit > 1000 {
		return nil, &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("limit %d is out of range: 1 to 1000", limit)}
	}
	after, err := parseSnapshotToken(req.Token)
	if err != nil {
		return nil, err
	}
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	ids, err := t.snapshots.names()
	if err != nil {
		return nil, err
	}
	var found []*savedSnapshot
	for _, id := range ids {
		if ctx.Err() != nil {
			return nil, cancelled(ctx, op)
		}
		s, err := t.findSnapshot(op, id)
		if errdefs.CodeOf(err) == "E2020" {
			continue // deleted at this moment
		}
		if err != nil {
			p.log.WarnContext(ctx, "a snapshot that cannot be read is left out", "snapshot_id", id, "err", err)
			continue
		}
		if (req.SandboxID == "" || s.SandboxID == req.SandboxID) && (req.Token == "" || s.position().compare(after) > 0) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *savedSnapshot) int { return a.position().compare(b.position()) })
	page := &providers.SnapshotPage{}
	for _, s := range found[:min(limit, len(found))] {
		page.Snapshots = append(page.Snapshots, s.public())
	}
	if len(found) > limit {
		page.Next = found[limit-1].position().snapshotToken()
	}
	return page, nil
}

func (s *savedSnapshot) position() pagePosition { return pagePosition{s.CreatedAt.UnixNano(), s.ID} }

func (p pagePosition) snapshotToken() string { return strconv.FormatInt(p.created, 36) + "-" + p.id }

func parseSnapshotToken(token string) (pagePosition, error) {
	if token == "" {
		return pagePosition{}, nil
	}
	created, id, _ := strings.Cut(token, "-")
	n, err := strconv.ParseInt(created, 36, 64)
	if err != nil || len(token) > 128 || !isSnapshotID(id) {
		return pagePosition{}, &errdefs.Error{Code: "E2011", Op: "list snapshots", Message: "page token is malformed",
			Suggestion: "pass SnapshotPage.Next of the page before, or nothing for the first page"}
	}
	return pagePosition{n, id}, nil
}

// DeleteSnapshot removes a snapshot. Its files stay as long as sandboxes use
// them that were made from it, or other snapshots do.
func (p *Provider) DeleteSnapshot(ctx context.Context, id string) error {
	const op = "delete snapshot"
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return err
	}
	defer done()
	if !isSnapshotID(id) {
		return noSnapshot(op, id)
	}
	lock, err := t.lockLayers(ctx)
	if err != nil {
		return err
	}
	err = t.removeSnapshot(id)
	lock.Close()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noSnapshot(op, id)
	case err != nil:
		return &errdefs.Error{Code: "E2000", Op: op, Message: "snapshot " + id, Err: err}
	}
	return t.sweepLayers(ctx)
}

// startFrom makes a sandbox start with the files of a snapshot.
func (o *order) startFrom(t *tree, p *Provider) error {
	const op = "create sandbox"
	if o.Snapshot == "" {
		return nil
	}
	s, err := t.findSnapshot(op, o.Snapshot)
	if err != nil {
		return err
	}
	if o.Image != "" || o.Root.Dir != "" {
		return badOption("a snapshot has the file tree of its sandbox, and no other", "leave Image and RootDir empty")
	}
	for _, p := range o.Places {
		if i := slices.IndexFunc(s.Places, func(q savedPlace) bool { return q.Path == p.Path }); i >= 0 && s.Places[i].Dir != p.Dir {
			return badOption("what is put at "+p.Path+" and what the snapshot has there are a file and a directory", "put it elsewhere")
		}
	}
	if m := s.Compiled; m != nil {
		o.template = m
		sayTemplate(&o.CreateRequest, m, s.Root.Image == "")
		o.asked = cmp.Or(o.asked, m.User)
		o.User = cmp.Or(o.asked, o.User)
		o.again.Env, o.again.WorkDir, o.again.User = o.Env, o.WorkDir, o.asked
		if err := checkEnv(o.Env); err != nil {
			return err
		}
	}
	o.made, o.Image, o.imageDigest, o.Root.Dir = s.Template, s.Root.Image, s.Root.Digest, s.Root.Dir
	o.Root.Expose = slices.Concat(s.Root.Expose, o.Root.Expose)
	slices.Sort(o.Root.Expose)
	o.Root.Expose = slices.Compact(o.Root.Expose)
	if err := checkRootView(&o.CreateRequest); err != nil {
		return err
	}
	o.again.Image, o.again.Root.Dir, o.again.Root.Expose = o.Image, o.Root.Dir, o.Root.Expose
	return o.useFiles(s.fileSet, p.exposed(o))
}

// useFiles makes a sandbox start with files, seen at the places that they were
// taken from.
func (o *order) useFiles(f fileSet, expose []string) error {
	if f.Mapping != o.mapping {
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message:    fmt.Sprintf("the files were kept for sandboxes with users of kind %s, and this process makes them with %s", f.Mapping, o.mapping),
			Suggestion: "run as the same user, with newuidmap as it was before"}
	}
	o.layers = f.Layers
	r := o.CreateRequest
	r.Places = nil
	for _, p := range f.Places {
		r.Places = append(r.Places, providers.Place{Path: p.Path, Dir: p.Dir})
		o.kept = append(o.kept, p.Path)
	}
	for _, p := range o.Places {
		if !slices.ContainsFunc(r.Places, func(q providers.Place) bool { return q.Path == p.Path }) {
			r.Places = append(r.Places, p)
		}
	}
	o.kept = append(o.kept, keptPlaces(o.mapping)...)
	var err error
	o.places, err = checkPlaces(&r, expose)
	return err
}

// keptPlaces are those of every sandbox whose files are kept.
func keptPlaces(kind mapKind) []string {
	out := []string{"/tmp", "/var/tmp", "/home/user"}
	if kind != mapSingle {
		out = append(out, "/root")
	}
	return out
}

// savePlaces notes which places have files of their own.
func savePlaces(places []place) []savedPlace {
	var out []savedPlace
	for _, p := range places {
		out = append(out, savedPlace{p.target, p.dir})
	}
	return out
}
