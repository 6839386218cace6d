//go:build linux

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/agent-sandbox/sandbox-go/providers/local"
)

// refNameKey is the annotation that names an image in a layout (OCI image
// specification, "Pre-Defined Annotation Keys").
const refNameKey = "org.opencontainers.image.ref.name"

// splitPath takes PATH[:TAG] apart. A path that is there as a whole has no tag.
func splitPath(text string) (path, tag string) {
	if _, err := os.Stat(text); err == nil {
		return text, ""
	}
	// A tag may be a whole reference, as docker save writes it.
	for i := strings.IndexByte(text, ':'); i >= 0; {
		if _, err := os.Stat(text[:i]); err == nil {
			return text[:i], text[i+1:]
		}
		next := strings.IndexByte(text[i+1:], ':')
		if next < 0 {
			break
		}
		i += next + 1
	}
	if i := strings.LastIndexByte(text, ':'); i > strings.LastIndexByte(text, '/') {
		return text[:i], text[i+1:]
	}
	return text, ""
}

func checkFile(prefix, text string) (path, tag string, err error) {
	path, tag = splitPath(text)
	if !filepath.IsAbs(path) {
		return "", "", malformed(prefix+text, errors.New("the path is not absolute"))
	}
	_, err = os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", absent(path+" is not there", nil)
	case err != nil:
		return "", "", absent("open "+path, err)
	}
	return path, tag, nil
}

func findLayout(text string) (*local.FoundImage, error) {
	path, tag, err := checkFile(layoutPrefix, text)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(filepath.Join(path, "index.json")); err == nil && fi.Size() > maxManifest {
		return nil, broken(fmt.Sprintf("the index of %s has %d bytes; at most %d", path, fi.Size(), maxManifest), nil)
	}
	idx, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, broken(path+" is no OCI image layout", err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, broken("read the index of "+path, err)
	}
	img, err := inLayout(idx, m, tag)
	if err != nil {
		return nil, broken("choose from "+path, err)
	}
	own, err := manifest(img)
	if err != nil {
		return nil, err
	}
	return found(img, own)
}

// inLayout finds the image of a tag, or the only one.
func inLayout(idx v1.ImageIndex, m *v1.IndexManifest, tag string) (v1.Image, error) {
	var named []v1.Descriptor
	for _, d := range m.Manifests {
		if tag == "" || d.Annotations[refNameKey] == tag {
			named = append(named, d)
		}
	}
	switch {
	case tag != "" && len(named) == 0:
		return nil, absent(fmt.Sprintf("the layout has no image %q", tag), nil)
	case len(named) != 1:
		return pick(idx, 0) // one image for several platforms
	case named[0].Size > maxManifest:
		return nil, fmt.Errorf("manifest %s has %d bytes; at most %d", named[0].Digest, named[0].Size, maxManifest)
	case named[0].MediaType.IsIndex():
		inner, err := idx.ImageIndex(named[0].Digest)
		if err != nil {
			return nil, err
		}
		return pick(inner, 0)
	}
	return idx.Image(named[0].Digest)
}

func findArchive(text string) (*local.FoundImage, error) {
	path, tag, err := checkFile(archivePrefix, text)
	if err != nil {
		return nil, err
	}
	if err := checkArchive(path); err != nil {
		return nil, broken(path+" is no archive of docker save", err)
	}
	var which *name.Tag
	if tag != "" {
		t, err := name.NewTag(tag)
		if err != nil {
			return nil, malformed(archivePrefix+text, err)
		}
		which = &t
	}
	img, err := tarball.ImageFromPath(path, which)
	if err != nil {
		if m, merr := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) }); merr == nil {
			return nil, absent(fmt.Sprintf("%s has no image %q; it has %s", path, tag, tagsOf(m)), err)
		}
		return nil, broken("read "+path, err)
	}
	return found(img, &v1.Manifest{})
}

func tagsOf(m tarball.Manifest) string {
	var out []string
	for _, d := range m {
		out = append(out, d.RepoTags...)
	}
	if len(out) == 0 {
		return fmt.Sprintf("%d without tags", len(m))
	}
	return strings.Join(out[:min(len(out), 16)], ", ")
}

// checkArchive bounds what the library reads whole.
func checkArchive(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for r, n := tar.NewReader(f), 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n > 10000 {
			return errors.New("it has more than 10000 entries")
		}
		// Layers are *.tar in the old form. In the new one they and the
		// configurations lie in blobs/, and load looks at the size that counts.
		if filepath.Ext(h.Name) == ".json" && h.Size > maxConfig {
			return fmt.Errorf("%q has %d bytes; at most %d", h.Name, h.Size, maxConfig)
		}
	}
}

func found(img v1.Image, m *v1.Manifest) (*local.FoundImage, error) {
	id, err := identify(img)
	if err != nil {
		return nil, err
	}
	return &local.FoundImage{Digest: id, Load: func(context.Context) (*local.Image, error) { return load(img, m) }}, nil
}
