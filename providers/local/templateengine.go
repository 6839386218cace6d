//go:build linux

package local

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// builtPrefix begins the name of the image of a template that an engine has
// built. No registry and no file is asked for such an image.
const builtPrefix = "template://"

func builtGone(ref string) error {
	name := strings.TrimPrefix(ref, builtPrefix)
	return &errdefs.Error{Code: "E2001", Op: "create sandbox", Message: "the image that template " + clip(name) + " was built to is not here any more, or not as it was",
		Suggestion: "build the template again"}
}

// byEngine tells whether a Dockerfile is built, and not the steps.
func (b *templateBuild) byEngine() bool {
	return b.m != nil && (b.m.Dockerfile != "" || b.req.Engine != "")
}

// buildByEngine builds the Dockerfile of a template with an engine and takes the
// image over.
func (b *templateBuild) buildByEngine(ctx context.Context) (*providers.Template, error) {
	if err := b.checkNames(); err != nil {
		return nil, err
	}
	if err := b.checkEngine(); err != nil {
		return nil, err
	}
	lock, err := b.lockKey(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = b.t.templates.remove(keyPrefix + b.saved.Digest)
		lock.Close()
	}()
	start := time.Now()
	reused, err := b.reuseImage(ctx)
	if err != nil {
		return nil, err
	}
	if reused {
		b.steps = []buildStep{{}}
		b.tell(providers.BuildEvent{Kind: providers.BuildCached, Step: 1, Text: "Dockerfile"})
	} else if err := b.runEngine(ctx); err != nil {
		return nil, err
	}
	if s, err := b.t.readTemplate(templateFile(b.m.Name)); !reused || err != nil || s.Digest != b.saved.Digest {
		if err := b.keepImage(ctx); err != nil {
			return nil, err
		}
	} else {
		b.saved = *s
	}
	b.tell(providers.BuildEvent{Kind: providers.BuildDone, Took: time.Since(start)})
	return b.saved.public(), nil
}

// checkEngine refuses what no engine can build, and names what would be built.
func (b *templateBuild) checkEngine() error {
	m := b.m
	if findImage == nil {
		return noImages()
	}
	if m.Dockerfile == "" {
		return &errdefs.Error{Code: "E2011", Op: opBuild, Message: "template " + m.Name + " has no Dockerfile, which an engine builds from",
			Suggestion: "set Dockerfile to what templates.Dockerfile writes, or name no engine"}
	}
	if b.network = b.req.Network; b.network == nil {
		b.network = networkPolicy(m.BuildNetwork)
	}
	mode, err := engineNetwork(b.network)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := b.archiveContext(sum); err != nil {
		return &errdefs.Error{Code: "E2004", Op: opBuild, Message: "read the folder of the template", Err: err}
	}
	b.copied = []string{hex.EncodeToString(sum.Sum(nil))}
	if b.saved.Engine, err = b.sum("template by engine 1", m.Dockerfile, b.copied, mode); err != nil {
		return err
	}
	if b.saved.Digest, err = b.sum(b.saved.Engine, m); err != nil {
		return err
	}
	b.saved.Model, b.saved.CreatedAt = m, time.Now().Round(0)
	return nil
}

// engineNetwork is what an engine is told about the network: nothing, none or
// host. It cannot keep to rules.
func engineNetwork(n *providers.NetworkPolicy) (string, error) {
	if n == nil {
		return "", nil
	}
	switch n.Mode {
	case "", "all":
		return "", nil
	case netNone, netLoopback:
		return "none", nil
	case netHost:
		return "host", nil
	}
	return "", &errdefs.Error{Code: "E8004", Op: opBuild, Message: "an engine cannot keep a build to network rules",
		Suggestion: "say none, host or all for builds, or build from steps without a Dockerfile"}
}

// archiveContext writes the folder of the template as the steps of a build see it.
func (b *templateBuild) archiveContext(w io.Writer) error {
	if b.req.Files == nil {
		return tar.NewWriter(w).Close()
	}
	s := &buildStep{copy: &model.Copy{Src: "."}, dest: "/"}
	return s.archive(b.req.Files, w)
}

// reuseImage looks for a template with the same Dockerfile and files, whatever
// else it says.
func (b *templateBuild) reuseImage(ctx context.Context) (found bool, err error) {
	if b.req.Fresh {
		return false, nil
	}
	err = b.locked(ctx, func() error {
		return b.t.eachTemplate(func(_ string, s *savedTemplate, err error) {
			if err == nil && !found && s.Engine == b.saved.Engine && b.p.images.known(ctx, s.Root.Digest) != nil {
				b.setImage(s.Root.Digest, s.Root.Layers, s.Bytes)
				found = true
			}
		})
	})
	return found, err
}

func (b *templateBuild) setImage(digest string, layers []string, size int64) {
	b.root = savedRoot{Image: builtPrefix + b.m.Name, Digest: digest, Layers: layers}
	b.saved.Root, b.saved.Bytes = b.root, size
}

// keepImage gives the result its name, unless it is not what the template says.
func (b *templateBuild) keepImage(ctx context.Context) error {
	if err := b.lookForPrograms(ctx); err != nil {
		return err
	}
	err := b.locked(ctx, func() error { return b.save(templateFile(b.m.Name)) })
	if err == nil {
		err = b.t.sweepLayers(context.WithoutCancel(ctx)) // of what was replaced
	}
	return stateError(opBuild, "keep template "+b.m.Name, err)
}

// runEngine builds in a temporary folder, and takes the image over. Nothing is left
// of it in the engine.
func (b *templateBuild) runEngine(ctx context.Context) (err error) {
	network, err := engineNetwork(b.network)
	if err != nil {
		return err
	}
	e, err := findEngine(ctx, b.req.Engine)
	if err != nil {
		return err
	}
	r, err := e.newRun()
	if err != nil {
		return errdefs.Wrap("E7000", opBuild, "no folder for the build", err)
	}
	r.network, r.fresh = network, b.req.Fresh
	news := &engineNews{b: b, engine: e.name}
	text := b.m.Dockerfile
	if r.daemon {
		news.mark = r.markStep()
		text, news.marks = addMarks(text, news.mark)
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if cerr := r.clean(cctx, err != nil); cerr != nil {
			b.p.log.Warn("an engine has kept something of a build", "template", b.m.Name, "err", cerr)
		}
	}()
	if err := b.writeContext(ctx, r, text); err != nil {
		return err
	}
	if err := r.build(ctx, news); err != nil {
		if ctx.Err() != nil {
			return cancelled(ctx, opBuild)
		}
		return news.failed(err)
	}
	news.end()
	ref, err := r.export(ctx)
	if err != nil {
		return errdefs.Wrap("E7010", opBuild+" "+b.m.Name, "take the image out of "+e.name, err)
	}
	return b.takeImage(ctx, ref)
}

// takeImage puts an image of files into the store.
func (b *templateBuild) takeImage(ctx context.Context, ref string) error {
	found, err := findImage(ctx, ref)
	if err != nil {
		return err
	}
	if !isImageDigest(found.Digest) {
		return &errdefs.Error{Code: "E8006", Op: opBuild, Message: fmt.Sprintf("the image has the digest %q", clip(found.Digest))}
	}
	img := b.p.images.known(ctx, found.Digest)
	if img == nil {
		what, err := found.Load(ctx)
		if err != nil {
			return err
		}
		if img, err = b.p.images.fetch(ctx, builtPrefix+b.m.Name, found.Digest, what); err != nil {
			return err
		}
	}
	b.setImage(img.Digest, img.Layers, b.p.images.size(img))
	return nil
}

// size is how much the files of an image take, in bytes.
func (s *imageStore) size(img *savedImage) (n int64) {
	for _, l := range img.Layers {
		if saved, err := s.saved(l); err == nil {
			n += saved.Bytes
		}
	}
	return n
}

// writeContext puts the Dockerfile and the files of the template into the folder
// of a build.
func (b *templateBuild) writeContext(ctx context.Context, r *engineRun, dockerfile string) error {
	problem := func(err error) error {
		if err == nil {
			return nil
		}
		return errdefs.Wrap("E7000", opBuild, "copy the folder of the template for the engine", err)
	}
	if err := os.WriteFile(r.dockerfile(), []byte(dockerfile), 0o600); err != nil {
		return problem(err)
	}
	root, err := os.OpenRoot(r.context())
	if err != nil {
		return problem(err)
	}
	defer root.Close()
	pr, pw := io.Pipe()
	sum := sha256.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(b.archiveContext(io.MultiWriter(pw, sum)))
	}()
	err = unpackContext(ctx, root, pr)
	pr.CloseWithError(io.ErrClosedPipe)
	<-done
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != b.copied[0] {
		err = errors.New("the files were changed while they were copied")
	}
	return problem(err)
}

// unpackContext writes the files of an archive of ours below root.
func unpackContext(ctx context.Context, root *os.Root, r io.Reader) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r) // what is padded
			return err
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		default:
			err = writeFile(root, name, os.FileMode(h.Mode), h.ModTime, in)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, mode os.FileMode, when time.Time, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return root.Chtimes(name, when, when)
}
