//go:build linux

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// templateResources are the limits that a template asks for. It was not written
// for this machine: it gets no more processors than there are.
func templateResources(m *model.Template) providers.Resources {
	return providers.Resources{
		CPUMilli:  min(int64(m.Resources.CPU*1000), int64(runtime.NumCPU())*1000),
		MemoryMiB: int64(m.Resources.MemoryMB), DiskMiB: int64(m.Resources.DiskMB),
	}
}

// createFromTemplate makes a sandbox from a template that was built. What the
// request says comes before what the template does.
func (p *Provider) createFromTemplate(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	const op = "create sandbox"
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := t.template(op, req.Template)
	if err != nil {
		return nil, err
	}
	name := req.Template
	if req.Image != "" || req.Snapshot != "" || req.Root.Dir != "" {
		return nil, badOption("template "+clip(name)+" says what the file tree is, and Image, Snapshot and RootDir would too", "leave them empty")
	}
	req.Template, req.Image = "", s.Root.Image
	if err := applyTemplate(&req, s, p.isolation); err != nil {
		return nil, err
	}
	return p.create(ctx, req, func(_ *tree, o *order) error {
		o.made, o.template, o.imageDigest = name, s.Model, s.Root.Digest
		if len(s.Steps) == 0 {
			return nil
		}
		return o.useFiles(s.files(), p.exposed(o))
	})
}

// sayTemplate puts the variables of a template below those of a request, and its
// working directory where there is none.
func sayTemplate(req *providers.CreateRequest, m *model.Template, host bool) {
	env := maps.Clone(m.Env)
	if env == nil {
		env = map[string]string{}
	}
	if host && len(m.Build) > 0 {
		env = hostEnv(env)
	}
	maps.Copy(env, req.Env)
	req.Env = env
	req.WorkDir = cmp.Or(req.WorkDir, m.Workdir)
}

// applyTemplate fills in what a request leaves open.
func applyTemplate(req *providers.CreateRequest, s *savedTemplate, isolation string) error {
	m := s.Model
	sayTemplate(req, m, s.Root.Image == "")
	req.User = cmp.Or(req.User, m.User)
	if req.Network == nil {
		req.Network = networkPolicy(m.Network)
	}
	if req.Lifetime == 0 {
		req.Lifetime = m.Resources.Lifetime
	}
	r, w := &req.Resources, templateResources(m)
	r.CPUMilli, r.MemoryMiB = cmp.Or(r.CPUMilli, w.CPUMilli), cmp.Or(r.MemoryMiB, w.MemoryMiB)
	r.GPU = cmp.Or(r.GPU, m.Resources.GPU)
	if r.DiskMiB == 0 && w.DiskMiB != 0 {
		r.DiskMiB = w.DiskMiB
		if req.Scratch == "" && w.DiskMiB > cmp.Or(r.MemoryMiB, defaultMemory>>20)/2 { // more than fits into memory
			req.Scratch = scratchDisk
		}
	}
	if s.Root.Image == "" && len(s.Steps) == 0 {
		return nil
	}
	if cmp.Or(req.Isolation, isolation) == isolationGVisor {
		return &errdefs.Error{Code: "E8004", Op: "create sandbox", Message: "a template with files of its own cannot be used in gVisor",
			Suggestion: "use isolation " + isolationContainer}
	}
	req.Isolation = isolationContainer
	return nil
}

// started starts what the template of a new sandbox says. A sandbox that does not
// get ready is killed.
func (p *Provider) started(ctx context.Context, sb *providers.Sandbox, m *model.Template) (*providers.Sandbox, error) {
	err := startTemplate(ctx, sb, m)
	if err == nil {
		return sb, nil
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	if kerr := p.Kill(kctx, sb.ID); kerr != nil && !errors.Is(kerr, errdefs.ErrNotFound) {
		err = errors.Join(err, kerr)
	}
	return nil, orCancelled(ctx, "create sandbox", err)
}

// startTemplate starts what the template says and waits until it is ready.
func startTemplate(ctx context.Context, sb *providers.Sandbox, m *model.Template) error {
	if m.Start == "" && m.Ready == nil {
		return nil
	}
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		return err
	}
	defer c.Close()
	shell := cmp.Or(m.Shell, "/bin/sh")
	w := &startWatch{}
	if m.Start != "" {
		if err := w.start(ctx, c, shell, m.Start); err != nil {
			return notReady(m, "start command: "+err.Error(), err)
		}
		defer w.close()
	}
	if m.Ready == nil {
		return nil
	}
	return w.await(ctx, c, shell, m)
}

func notReady(m *model.Template, what string, err error) error {
	return &errdefs.Error{Code: "E2009", Op: "create sandbox", Message: "template " + m.Name + " is not ready: " + what, Err: err}
}

// startWatch follows the start command until the sandbox is ready.
type startWatch struct {
	stream *envd.Stream
	ended  chan string // how it ended, with its last lines
	done   chan struct{}
}

func (w *startWatch) start(ctx context.Context, c *envd.Client, shell, line string) error {
	st, err := c.Start(ctx, &envd.StartOptions{Path: shell, Args: []string{"-c", line}})
	if err != nil {
		return err
	}
	w.stream, w.ended, w.done = st, make(chan string, 1), make(chan struct{})
	go func() {
		defer close(w.done)
		var last []string
		note := lineWriter{line: func(s string) {
			if last = append(last, s); len(last) > lastLines {
				last = last[1:]
			}
		}}
		for {
			ev, err := st.Next()
			if err != nil {
				return
			}
			note.write(ev.Stdout)
			note.write(ev.Stderr)
			if ev.End != nil {
				note.flush()
				text := ev.End.Status
				for _, l := range last {
					text += "\n    " + l
				}
				w.ended <- text
				return
			}
		}
	}()
	return nil
}

// close stops following. The command lives on.
func (w *startWatch) close() {
	w.stream.Close(nil)
	<-w.done
}

const (
	readyTimeout = 60 * time.Second // of a probe that has none
	probeEvery   = 50 * time.Millisecond
	probeLimit   = 10 * time.Second // of one try
)

// await tries the probe until it succeeds.
func (w *startWatch) await(ctx context.Context, c *envd.Client, shell string, m *model.Template) error {
	limit := cmp.Or(m.Ready.Timeout, readyTimeout)
	end := time.After(limit)
	seen := "nothing"
	for {
		pctx, cancel := context.WithTimeout(ctx, min(probeLimit, limit))
		err := probeOnce(pctx, c, shell, m.Ready)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		seen = err.Error()
		select {
		case how := <-w.ended: // nil channel: there is no start command
			if m.Ready.Command == "" || how != "exit status 0" {
				return notReady(m, "its start command has ended: "+how, nil)
			}
			w.ended = nil // it has started something that goes on
		case <-end:
			return notReady(m, fmt.Sprintf("the probe did not succeed within %v; it saw last: %s", limit, seen), nil)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(probeEvery):
		}
	}
}

func probeOnce(ctx context.Context, c *envd.Client, shell string, probe *model.Probe) error {
	if probe.Port != 0 {
		conn, err := c.DialPort(ctx, probe.Port)
		if err != nil {
			return fmt.Errorf("port %d: %w", probe.Port, err)
		}
		return conn.Close()
	}
	var last string
	err := follow(ctx, c, []string{shell, "-c", probe.Command}, "", func(s string) { last = s })
	if err != nil && last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return err
}
