//go:build linux

package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// buildLifetime bounds one step.
const buildLifetime = 24 * time.Hour

// do runs a step in a sandbox and keeps what it has written, under key unless that
// is empty.
func (b *templateBuild) do(ctx context.Context, s *buildStep, copied string, line func(string), key string) (err error) {
	req := providers.CreateRequest{
		RequestID: "build-" + randomText(16), NewID: true, User: "root", Env: b.env(), Network: b.network,
		Lifetime: buildLifetime, Places: s.place, Image: b.root.Image, Scratch: scratchDisk, Isolation: isolationContainer,
		Resources: templateResources(b.m), Metadata: map[string]string{"template-build": b.m.Name},
	}
	if b.mapping == mapSingle {
		req.User = defaultUser
	}
	if b.host {
		req.Places = placesOf(s)
	} else {
		req.Root.Writable = true
	}
	sb, err := b.p.create(ctx, req, func(_ *tree, o *order) error {
		o.build, o.made, o.imageDigest = true, b.m.Name, b.root.Digest
		if len(b.saved.Steps) == 0 {
			return nil
		}
		return o.useFiles(b.saved.files(), b.p.exposed(o))
	})
	if err != nil {
		return err
	}
	defer func() {
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
		defer cancel()
		if kerr := b.p.Kill(kctx, sb.ID); kerr != nil {
			err = errors.Join(err, fmt.Errorf("end the sandbox of the step: %w", kerr))
		}
	}()
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		return err
	}
	defer c.Close()
	if s.copy != nil {
		if err := b.send(ctx, c, s, copied); err != nil {
			return err
		}
	}
	if err := follow(ctx, c, s.args, s.dir, line); err != nil {
		return err
	}
	if key == "" {
		return nil
	}
	return b.keep(ctx, sb.ID, key)
}

// send puts the archive of what a step copies into its sandbox.
func (b *templateBuild) send(ctx context.Context, c *envd.Client, s *buildStep, digest string) error {
	r, w := io.Pipe()
	sum := sha256.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(s.archive(b.req.Files, io.MultiWriter(w, sum)))
	}()
	_, err := c.WriteFile(ctx, copyArchive, r, -1, nil)
	r.CloseWithError(io.ErrClosedPipe)
	<-done
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != digest {
		err = errors.New("the files were changed while they were copied")
	}
	return err
}

// follow runs a program, whose output goes to line, to its end.
func follow(ctx context.Context, c *envd.Client, args []string, dir string, line func(string)) error {
	st, err := c.Start(ctx, &envd.StartOptions{Path: args[0], Args: args[1:], Dir: dir, Bound: true})
	if err != nil {
		return err
	}
	defer st.Close(nil)
	stop := context.AfterFunc(ctx, func() { st.Close(nil) })
	defer stop()
	out, errs := lineWriter{line: line}, lineWriter{line: line}
	for {
		ev, err := st.Next()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		out.write(ev.Stdout)
		errs.write(ev.Stderr)
		if end := ev.End; end != nil {
			out.flush()
			errs.flush()
			switch {
			case end.MemoryLimit:
				return stepStatus("it was ended at the memory limit of its sandbox")
			case end.NoSpace:
				return stepStatus("it was ended because it wrote more than its sandbox may")
			case end.Exited && end.ExitCode == 0:
				return nil
			}
			return stepStatus(end.Status)
		}
	}
}

// maxLine bounds a line of output, in bytes: what is longer is cut in pieces.
const maxLine = 4 << 10

// lineWriter cuts output into lines. A carriage return ends one too, as progress
// bars use it.
type lineWriter struct {
	line func(string)
	buf  []byte
}

func (w *lineWriter) write(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\n\r")
		if i < 0 {
			i = len(p)
		}
		n := min(i, maxLine-len(w.buf))
		w.buf = append(w.buf, p[:n]...)
		if n < i {
			p = p[n:]
			w.flush()
			continue
		}
		if i == len(p) {
			return
		}
		p = p[i+1:]
		w.flush()
	}
}

func (w *lineWriter) flush() {
	if len(w.buf) > 0 {
		w.line(string(bytes.ToValidUTF8(w.buf, []byte("\uFFFD"))))
		w.buf = w.buf[:0]
	}
}

// keep makes a layer of what the sandbox of a step has written.
func (b *templateBuild) keep(ctx context.Context, id, key string) error {
	t, e, done, err := b.p.enter(ctx, opBuild, id)
	if err != nil {
		return err
	}
	defer done()
	var conf savedConfig
	if err := e.load(fileConfig, &conf); err != nil {
		return err
	}
	c, err := t.takeFiles(ctx, e, opSnapshot, &conf)
	if err != nil {
		return t.captureError(ctx, opBuild, id, err)
	}
	defer c.close()
	step := builtStep{Key: key, Size: c.size, fileSet: conf.fileSet}
	err = t.keep(ctx, c, &step.fileSet, func() error {
		b.saved.Steps = append(b.saved.Steps, step)
		err := b.save(b.file + fileJSON)
		if err != nil {
			b.saved.Steps = b.saved.Steps[:len(b.saved.Steps)-1]
		}
		return err
	})
	if err != nil {
		return t.captureError(ctx, opBuild, id, err)
	}
	return nil
}
