//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() { local.RegisterImages(find) }

// Bounds of what is read whole.
const (
	maxManifest = 4 << 20 // the distribution specification asks registries for as much
	maxConfig   = 8 << 20
	maxNested   = 4 // indexes in indexes
)

const op = "find image"

// Prefixes of references that are no names in registries.
const (
	layoutPrefix  = "oci:"
	archivePrefix = "docker-archive:"
)

func find(ctx context.Context, ref string) (*local.FoundImage, error) {
	if path, ok := strings.CutPrefix(ref, layoutPrefix); ok {
		return findLayout(path)
	}
	if path, ok := strings.CutPrefix(ref, archivePrefix); ok {
		return findArchive(path)
	}
	return findRemote(ctx, ref)
}

func malformed(ref string, err error) error {
	return &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("%q is not a reference to an image", ref), Err: err,
		Suggestion: "name it as in alpine:3.22, ghcr.io/me/tools@sha256:…, oci:/path/to/layout:tag or docker-archive:/path/to/file.tar"}
}

func absent(what string, err error) error {
	return &errdefs.Error{Code: "E2001", Op: op, Message: what, Err: err, Suggestion: "check the name, and that you may read it"}
}

// broken is an image that is not what it says.
func broken(what string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	return &errdefs.Error{Code: "E8006", Op: op, Message: what, Err: err}
}

// platform is that of the sandboxes of this machine.
func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

// pick takes what is for this machine out of an index.
func pick(idx v1.ImageIndex, nested int) (v1.Image, error) {
	if nested > maxNested {
		return nil, errors.New("indexes are nested too deep")
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	want := match.Platforms(platform())
	for _, d := range m.Manifests {
		if d.Size > maxManifest {
			return nil, fmt.Errorf("manifest %s has %d bytes; at most %d", d.Digest, d.Size, maxManifest)
		}
		switch {
		case d.MediaType.IsIndex() && d.Platform == nil:
			inner, err := idx.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := pick(inner, nested+1); err == nil {
				return img, nil
			}
		case d.MediaType.IsImage() && (want(d) || d.Platform == nil && len(m.Manifests) == 1):
			return idx.Image(d.Digest)
		}
	}
	return nil, absent(fmt.Sprintf("the image has nothing for %s, only %s", platform(), offered(m)), nil)
}

func offered(m *v1.IndexManifest) string {
	var out []string
	for _, d := range m.Manifests {
		if d.Platform != nil && len(out) < 16 {
			out = append(out, d.Platform.String())
		}
	}
	if out == nil {
		return "manifests without a platform"
	}
	return strings.Join(out, ", ")
}

// manifest reads the manifest of an image that has one, and bounds what will be
// read because of it.
func manifest(img v1.Image) (*v1.Manifest, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, broken("read the manifest of the image", err)
	}
	if m.Config.Size > maxConfig {
		return nil, broken(fmt.Sprintf("the configuration of the image has %d bytes; at most %d", m.Config.Size, maxConfig), nil)
	}
	return m, nil
}

// load reads what an image says about itself. An archive of docker save has no
// manifest, and m is empty.
func load(img v1.Image, m *v1.Manifest) (*local.Image, error) {
	c, err := img.ConfigFile()
	if err != nil {
		return nil, broken("read the configuration of the image", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return nil, absent(fmt.Sprintf("the image is for %s/%s, and this machine is %s", c.OS, c.Architecture, platform()), nil)
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, broken("read the layers of the image", err)
	}
	if len(layers) != len(c.RootFS.DiffIDs) {
		return nil, broken(fmt.Sprintf("the image has %d layers and the digests of %d", len(layers), len(c.RootFS.DiffIDs)), nil)
	}
	out := &local.Image{Config: local.ImageConfig{Env: c.Config.Env, WorkingDir: c.Config.WorkingDir, User: c.Config.User}}
	for i, l := range layers {
		size := int64(0)
		if i < len(m.Layers) {
			size = m.Layers[i].Size
		}
		id := c.RootFS.DiffIDs[i]
		if id.Algorithm != "sha256" {
			return nil, broken("layer "+id.String()+" has a digest that is not SHA-256", nil)
		}
		out.Layers = append(out.Layers, local.ImageLayer{Digest: id.Hex, Size: size, Open: func(ctx context.Context) (io.ReadCloser, error) {
			return open(ctx, l)
		}})
	}
	return out, nil
}

// open returns the archive of a layer, unpacked. What it is packed in is compared
// with its digest by the library, at its end.
func open(ctx context.Context, l v1.Layer) (io.ReadCloser, error) {
	if t, err := l.MediaType(); err == nil && !t.IsLayer() {
		return nil, broken("layers of type "+string(t)+" are unknown", nil)
	}
	r, err := l.Uncompressed()
	if err != nil {
		return nil, remoteError("fetch a layer of the image", err)
	}
	stop := context.AfterFunc(ctx, func() { r.Close() })
	return &stoppedReader{r, stop}, nil
}

type stoppedReader struct {
	io.ReadCloser
	stop func() bool
}

func (r *stoppedReader) Close() error {
	if !r.stop() {
		return nil // closed with the context
	}
	return r.ReadCloser.Close()
}

// identify is the digest that an image of a file is known by: that of its
// configuration, which names every layer.
func identify(img v1.Image) (string, error) {
	h, err := partial.ConfigName(img)
	if err != nil {
		return "", broken("read the configuration of the image", err)
	}
	return h.String(), nil
}
