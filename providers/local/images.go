//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/layertar"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// An ImageFinder finds the image of a reference. Of a tag it asks its registry,
// for a digest nothing is asked.
type ImageFinder func(ctx context.Context, ref string) (*FoundImage, error)

// FoundImage is an image of which only its name is known so far.
type FoundImage struct {
	Digest string // "sha256:" and lower-case hex; names everything in it

	// Load asks what the image is made of. It is not called for an image that is
	// kept here as a whole.
	Load func(ctx context.Context) (*Image, error)
}

// Image is what an image says about itself.
type Image struct {
	Config ImageConfig
	Layers []ImageLayer // lowest first
}

// ImageConfig is what a sandbox takes over of the configuration of an image.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"` // NAME=VALUE
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
}

// ImageLayer is one layer of an image.
type ImageLayer struct {
	Digest string // lower-case hex SHA-256 of the archive, unpacked
	Size   int64  // as it is sent, in bytes; zero: unknown

	// Open returns the archive, unpacked. It is not called for a layer that is
	// kept here. The reader fails when ctx ends.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

var findImage ImageFinder

// RegisterImages makes every provider of this process take images, found by f.
// It is for the init function of package providers/local/image and panics when
// called twice.
func RegisterImages(f ImageFinder) {
	if findImage != nil {
		panic("local: RegisterImages called twice")
	}
	findImage = f
}

// imagesImport is what a program must import for images.
const imagesImport = "github.com/agent-sandbox/sandbox-go/providers/local/image"

func noImages() error {
	return &errdefs.Error{Code: "E8004", Op: "create sandbox",
		Message:    "this program has no support for images: provider local needs the import of " + imagesImport,
		Suggestion: "add import _ \"" + imagesImport + "\" to the program"}
}

// Where images lie in the state directory: files that say what an image is made
// of and what a reference stood for, and below them a directory and a file of
// data for each layer.
const (
	imagesDir      = "images"
	imageLayersDir = "layers"
)

// maxImageLayers bounds the layers of an image.
const maxImageLayers = maxStack - 1

// savedImage is the file images/<digest>.json.
type savedImage struct {
	Digest string      `json:"digest"`
	Config ImageConfig `json:"config"`
	Layers []string    `json:"layers"` // lowest first
}

// savedRef is the file images/ref-<hash of reference>.json.
type savedRef struct {
	Ref    string    `json:"ref"`
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
}

// savedLayer is the file images/layers/<digest>.json.
type savedLayer struct {
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`
	Dropped int64  `json:"dropped,omitempty"`
	Seal    string `json:"seal"`
}

// imageStore keeps images. Layers are complete, compared with their digest and
// sealed before they have their name, and nobody writes them afterwards.
type imageStore struct {
	layers, images *folder
	path           string // of layers, for mounts
	mapping        mapKind
	log            *slog.Logger

	mu     sync.Mutex
	intact map[string]bool      // layers whose seal was looked at by this process
	recent map[string]*savedRef // references that were asked for within refreshRef

	removals *removals // nil: nobody asks what collect removes
}

// refreshRef is how long the answer of a registry about a tag holds.
const refreshRef = time.Minute

func (t *tree) openImages(log *slog.Logger, mapping mapKind) (*imageStore, error) {
	s := &imageStore{path: filepath.Join(t.path, imagesDir, imageLayersDir), mapping: mapping, log: log,
		intact: map[string]bool{}, recent: map[string]*savedRef{}}
	var err error
	if s.images, err = t.base.ensure(imagesDir); err != nil {
		return nil, unsafeState(filepath.Join(t.path, imagesDir), err)
	}
	if s.layers, err = s.images.ensure(imageLayersDir); err != nil {
		s.close()
		return nil, unsafeState(s.path, err)
	}
	return s, nil
}

func (s *imageStore) close() {
	s.layers.close()
	s.images.close()
}

// pull returns the image that ref names, all of whose layers are here then.
func (s *imageStore) pull(ctx context.Context, ref string) (*savedImage, error) {
	if findImage == nil {
		return nil, noImages()
	}
	found, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !isImageDigest(found.Digest) {
		return nil, &errdefs.Error{Code: "E8006", Op: "create sandbox", Message: fmt.Sprintf("image %q has the digest %q", clip(ref), clip(found.Digest))}
	}
	if img := s.known(ctx, found.Digest); img != nil {
		return img, nil
	}
	if found.Load == nil { // only what is kept here is known of it
		return nil, &errdefs.Error{Code: "E5001", Op: "create sandbox", Message: "its registry cannot be asked for " + ref + ", and it is not here as a whole"}
	}
	img, err := found.Load(ctx)
	if err != nil {
		return nil, err
	}
	return s.fetch(ctx, ref, found.Digest, img)
}

// pullAs is like pull, for an image that ref stood for at another time. An empty
// digest is the one it stands for now.
func (s *imageStore) pullAs(ctx context.Context, ref, digest string) (*savedImage, error) {
	if digest == "" {
		return s.pull(ctx, ref)
	}
	if img := s.known(ctx, digest); img != nil {
		return img, nil
	}
	if strings.HasPrefix(ref, builtPrefix) {
		return nil, builtGone(ref)
	}
	if named, ok := withDigest(ref, digest); ok {
		return s.pull(ctx, named)
	}
	img, err := s.pull(ctx, ref)
	if err == nil && img.Digest != digest {
		return nil, &errdefs.Error{Code: "E2001", Op: "create sandbox",
			Message:    "image " + ref + " is " + img.Digest + " now; the files were kept in a sandbox of " + digest + ", which is not here any more",
			Suggestion: "put the image as it was to that place"}
	}
	return img, err
}

// withDigest names an image of a registry by its digest in the place of its tag.
func withDigest(ref, digest string) (string, bool) {
	if strings.HasPrefix(ref, "oci:") || strings.HasPrefix(ref, "docker-archive:") {
		return "", false
	}
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref + "@" + digest, true
}

func isImageDigest(d string) bool {
	hex, ok := strings.CutPrefix(d, "sha256:")
	return ok && isDigest(hex)
}

// find asks what ref stands for. Where nobody answers, what it stood for last is
// taken.
func (s *imageStore) find(ctx context.Context, ref string) (*FoundImage, error) {
	s.mu.Lock()
	last := s.recent[ref]
	s.mu.Unlock()
	if last != nil && time.Since(last.At) < refreshRef && s.known(ctx, last.Digest) != nil {
		return &FoundImage{Digest: last.Digest}, nil
	}
	found, err := findImage(ctx, ref)
	if err == nil {
		r := &savedRef{Ref: ref, Digest: found.Digest, At: time.Now()}
		s.mu.Lock()
		if len(s.recent) > 1000 {
			clear(s.recent)
		}
		s.recent[ref] = r
		s.mu.Unlock()
		if b, merr := json.Marshal(r); merr == nil {
			err = s.images.write(refName(ref), b)
		}
		return found, err
	}
	if code := errdefs.CodeOf(err); ctx.Err() != nil || code != "E5001" && code != "E5002" && code != "E8010" && code != "E8011" {
		return nil, err
	}
	var r savedRef
	if b, rerr := s.images.read(refName(ref), 64<<10); rerr != nil || json.Unmarshal(b, &r) != nil || r.Ref != ref {
		return nil, err
	}
	s.log.WarnContext(ctx, "registry not reached; the image that the reference stood for last is taken", "image", ref, "digest", r.Digest, "err", err)
	return &FoundImage{Digest: r.Digest, Load: func(context.Context) (*Image, error) { return nil, err }}, nil
}

func refName(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return "ref-" + hex.EncodeToString(sum[:]) + ".json"
}

func imageName(digest string) string { return strings.TrimPrefix(digest, "sha256:") + ".json" }

// known returns an image that is here as a whole, or nil.
func (s *imageStore) known(ctx context.Context, digest string) *savedImage {
	if !isImageDigest(digest) {
		return nil
	}
	b, err := s.images.read(imageName(digest), maxImageFile)
	var img savedImage
	if err != nil || json.Unmarshal(b, &img) != nil || img.Digest != digest {
		return nil
	}
	for _, l := range img.Layers {
		if !isDigest(l) || !s.has(ctx, l) {
			return nil
		}
	}
	_ = unix.UtimesNanoAt(s.images.fd(), imageName(digest), nil, unix.AT_SYMLINK_NOFOLLOW)
	return &img
}

const maxImageFile = 1 << 20

// fetch makes every layer of an image be here, several at once.
func (s *imageStore) fetch(ctx context.Context, ref, digest string, img *Image) (*savedImage, error) {
	if len(img.Layers) > maxImageLayers {
		return nil, &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message: fmt.Sprintf("image %q has %d layers; at most %d", clip(ref), len(img.Layers), maxImageLayers), Suggestion: "build it with fewer layers"}
	}
	start := time.Now()
	s.log.InfoContext(ctx, "image is fetched", "image", ref, "digest", digest, "layers", len(img.Layers))
	out := &savedImage{Digest: digest, Config: img.Config}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	seen := map[string]bool{}
	for _, l := range img.Layers {
		out.Layers = append(out.Layers, l.Digest)
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := s.add(ctx, l); err != nil {
				cancel(err) // the first one says why
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b, err := json.Marshal(out)
	if err == nil {
		err = s.images.write(imageName(digest), b)
	}
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "keep image "+ref, err)
	}
	s.log.InfoContext(ctx, "image is here", "image", ref, "digest", digest, "duration", time.Since(start))
	return out, nil
}

// has reports whether a layer is here and as it was written, and notes that it
// is in use. One that was changed is taken away.
func (s *imageStore) has(ctx context.Context, digest string) bool {
	s.mu.Lock()
	intact := s.intact[digest]
	s.mu.Unlock()
	d, err := s.layers.sub(digest)
	if err != nil {
		return false
	}
	defer d.close()
	if !intact {
		l, err := s.saved(digest)
		if err == nil {
			var seal string
			if seal, err = layertar.Seal(d.f); err == nil && seal != l.Seal {
				err = errors.New("its files are not as they were written")
			}
		}
		if err != nil {
			s.log.WarnContext(ctx, "layer of an image is damaged; it will be fetched again", "digest", digest, "err", err)
			return false
		}
		s.mu.Lock()
		s.intact[digest] = true
		s.mu.Unlock()
	}
	_ = unix.UtimesNanoAt(s.layers.fd(), digest+".json", nil, unix.AT_SYMLINK_NOFOLLOW)
	return true
}

// saved reads what is written down about a layer.
func (s *imageStore) saved(digest string) (l savedLayer, err error) {
	b, err := s.layers.read(digest+".json", 64<<10)
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	return l, err
}

// add makes a layer be here. One process at a time fetches it, and the others
// wait.
func (s *imageStore) add(ctx context.Context, l ImageLayer) error {
	if !isDigest(l.Digest) {
		return &errdefs.Error{Code: "E8006", Op: "create sandbox", Message: fmt.Sprintf("layer %q has no SHA-256 as its name", clip(l.Digest))}
	}
	if s.has(ctx, l.Digest) {
		return nil
	}
	lock, err := s.lock(ctx, l.Digest)
	if err != nil {
		return layerError(l, err)
	}
	defer lock.Close()
	defer s.layers.remove(".lock-" + l.Digest)
	if s.has(ctx, l.Digest) { // somebody else was faster
		return nil
	}
	start := time.Now()
	stats, err := s.write(ctx, l)
	if err != nil {
		return layerError(l, err)
	}
	s.log.InfoContext(ctx, "layer is here", "digest", l.Digest, "entries", stats.Entries, "bytes", stats.Bytes,
		"dropped", stats.Dropped, "duration", time.Since(start))
	return nil
}

func layerError(l ImageLayer, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	e := &errdefs.Error{Code: "E2000", Op: "create sandbox", Message: "fetch layer " + l.Digest, Err: err}
	if _, ok := errors.AsType[*layertar.LimitError](err); ok {
		e.Code = "E8006"
	}
	return e
}

// lock waits for the right to write one layer.
func (s *imageStore) lock(ctx context.Context, digest string) (*os.File, error) {
	for {
		f, err := s.layers.tryLock(".lock-" + digest)
		if err == nil || !errors.Is(err, errBusy) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process is fetching the layer: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// maxInflation is how many times larger than what was sent a layer may be.
const maxInflation = 200

// write fetches a layer. It is called with the lock of the layer held, and what
// an earlier holder left is thrown away.
func (s *imageStore) write(ctx context.Context, l ImageLayer) (stats layertar.Stats, err error) {
	tmp := ".new-" + l.Digest
	if err := layertar.Remove(s.layers.f, tmp); err != nil {
		return stats, err
	}
	if err := s.layers.mkdir(tmp); err != nil {
		return stats, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, layertar.Remove(s.layers.f, tmp))
		}
	}()
	d, err := s.layers.sub(tmp)
	if err != nil {
		return stats, err
	}
	defer d.close()
	r, err := l.Open(ctx)
	if err != nil {
		return stats, err
	}
	sum := sha256.New()
	stats, err = layertar.Unpack(ctx, d.f, io.TeeReader(r, sum), s.unpackOptions(l.Size))
	err = errors.Join(err, r.Close())
	if err != nil {
		return stats, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != l.Digest {
		return stats, &errdefs.Error{Code: "E8006", Op: "create sandbox", Message: "layer " + l.Digest + " of the image has the digest " + got}
	}
	if err := unix.Fchmod(d.fd(), 0o755); err != nil {
		return stats, err
	}
	return stats, s.publish(d, tmp, l.Digest, stats)
}

func (s *imageStore) unpackOptions(sent int64) layertar.Options {
	var o layertar.Options
	if s.mapping == mapBlock {
		o.OwnerBase = volumeIDs
	}
	if sent > 0 {
		o.Bytes = min(layertar.DefaultBytes, max(256<<20, sent*maxInflation))
	}
	return o
}

// publish gives a layer its name.
func (s *imageStore) publish(d *folder, tmp, digest string, stats layertar.Stats) error {
	if err := unix.Syncfs(d.fd()); err != nil {
		return fmt.Errorf("write the layer to disk: %w", err)
	}
	seal, err := layertar.Seal(d.f)
	if err != nil {
		return err
	}
	b, err := json.Marshal(savedLayer{Entries: stats.Entries, Bytes: stats.Bytes, Dropped: stats.Dropped, Seal: seal})
	if err != nil {
		return err
	}
	// A damaged one may be in use; it is removed when it is not any more.
	bad := ".bad-" + digest + "-" + randomText(8)
	if err := unix.Renameat(s.layers.fd(), digest, s.layers.fd(), bad); err != nil && err != unix.ENOENT {
		return err
	}
	if err := s.layers.write(digest+".json", b); err != nil {
		return err
	}
	if err := unix.Renameat2(s.layers.fd(), tmp, s.layers.fd(), digest, unix.RENAME_NOREPLACE); err != nil {
		return &fs.PathError{Op: "rename", Path: tmp, Err: err}
	}
	s.mu.Lock()
	s.intact[digest] = true
	s.mu.Unlock()
	return nil
}

// stackLayers are the layers of an image as a stack wants them, uppermost first.
func (s *imageStore) stackLayers(img *savedImage) []stackLayer {
	var out []stackLayer
	for i := len(img.Layers) - 1; i >= 0; i-- {
		out = append(out, stackLayer{filepath.Join(s.path, img.Layers[i]), ownersStored})
	}
	return out
}

// collect removes images and layers that nobody has used since before, unless
// used has the file of the image or the layer.
func (s *imageStore) collect(before time.Time, used map[string]bool) error {
	var errs []error
	old := func(d *folder, name string) bool {
		var st unix.Stat_t
		return unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && time.Unix(st.Mtim.Unix()).Before(before)
	}
	names, err := s.images.allNames()
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != imageLayersDir && !used[n] && old(s.images, n) {
			err := s.images.remove(n)
			if digest := strings.TrimSuffix(n, ".json"); err == nil && isDigest(digest) { // not what a reference stood for
				s.removals.note(providers.RemovedImage, digest)
			}
			errs = append(errs, err)
		}
	}
	if names, err = s.layers.allNames(); err != nil {
		return err
	}
	for _, n := range names {
		digest, isLayer := strings.CutSuffix(n, ".json")
		switch {
		case isLayer && isDigest(digest) && !used[digest] && old(s.layers, n):
			errs = append(errs, s.drop(digest))
		case strings.HasPrefix(n, ".bad-") && len(n) > 69 && !used[n[5:69]]:
			errs = append(errs, layertar.Remove(s.layers.f, n))
		case strings.HasPrefix(n, ".new-") && isDigest(n[5:]), strings.HasPrefix(n, ".lock-"):
			errs = append(errs, s.tidy(n[strings.IndexByte(n, '-')+1:]))
		}
	}
	return errors.Join(errs...)
}

// drop removes a layer, unless it is being fetched.
func (s *imageStore) drop(digest string) error {
	lock, err := s.layers.tryLock(".lock-" + digest)
	if err != nil {
		return notBusy(err)
	}
	defer lock.Close()
	s.mu.Lock()
	delete(s.intact, digest)
	s.mu.Unlock()
	gone := ".bad-" + digest + "-" + randomText(8)
	err = unix.Renameat(s.layers.fd(), digest, s.layers.fd(), gone)
	if err == nil || err == unix.ENOENT {
		err = errors.Join(layertar.Remove(s.layers.f, gone), s.layers.remove(digest+".json"))
		if err == nil {
			s.removals.note(providers.RemovedImageLayer, digest)
		}
	}
	return err
}

// tidy removes what a fetch that was cut off left.
func (s *imageStore) tidy(digest string) error {
	lock, err := s.layers.tryLock(".lock-" + digest)
	if err != nil {
		return notBusy(err)
	}
	defer lock.Close()
	if !isDigest(digest) {
		return nil
	}
	return errors.Join(layertar.Remove(s.layers.f, ".new-"+digest), s.layers.remove(".lock-"+digest))
}

func notBusy(err error) error {
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}

func (p *Provider) collectImages(before time.Time) error {
	used, err := p.tree.usedImages()
	if err != nil {
		return err
	}
	return p.images.collect(before, used)
}

// usedImages are the files of images, and the layers, that sandboxes show,
// living ones or not, and that snapshots are to be seen in.
func (t *tree) usedImages() (map[string]bool, error) {
	used := map[string]bool{}
	add := func(r savedRoot) {
		used[imageName(r.Digest)] = true
		for _, l := range r.Layers {
			used[l] = true
		}
	}
	ids, err := t.boxes.names()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		c, err := t.config(id)
		if err != nil {
			continue // being made, which takes what it has just looked at, or gone
		}
		add(c.Root)
	}
	if ids, err = t.snapshots.names(); err != nil {
		return nil, err
	}
	for _, id := range ids {
		s, err := t.snapshot(id)
		if err != nil {
			continue // deleted at this moment
		}
		add(s.Root)
	}
	err = t.eachTemplate(func(_ string, s *savedTemplate, err error) {
		if err == nil { // otherwise removed at this moment
			add(s.Root)
		}
	})
	return used, err
}
