package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/internal/raceenv"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// launch starts a worker and checks that it is one of this program. What was
// started of one that fails is ended again.
func (p *pool) launch(ctx context.Context, s *setup) (_ *poolWorker, err error) {
	late := errdefs.New("E9015", s.name, "no worker within "+s.opts.StartupTimeout.String()+" (startup_timeout)")
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.StartupTimeout, late)
	defer cancel()
	ctx, span := s.span(ctx, spanStart, slog.String(attrFunction, s.fn.id))
	defer func() { span.end(err) }()
	out, stderr := newSink("standard output"), newSink("standard error")
	w := &poolWorker{pool: p, setup: s, over: make(chan struct{})}
	w.outputTo(s, out, stderr)
	m, err := p.set.maker.start(ctx, s, out.take, stderr.take)
	if err != nil {
		out.close()
		stderr.close()
		p.set.targets.put(w.stdout)
		p.set.targets.put(w.stderr)
		return nil, notStartedError(ctx, s, err)
	}
	w.made = m
	w.workerConn = newWorkerConn(m.conn, m.proc, out, stderr)
	w.logs.named(m)
	if m.attach != nil {
		m.attach(w.workerConn)
	}
	h, err := w.hello(ctx)
	if err == nil {
		err = checkHello(h, m.token, m.digest, s.unit, s.name)
	} else {
		err = &stepError{"hello", err}
	}
	if err == nil && s.instance != nil && s.instance.ready != nil {
		if err = s.instance.ready(ctx, w); err != nil {
			// The hook's own context may have ended a moment before this one.
			if end, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) && time.Until(end) < answerTime {
				<-ctx.Done()
			}
			err = &stepError{stepEnter, err}
		}
	}
	if err != nil {
		w.end(false)
		return nil, notStartedError(ctx, s, err)
	}
	return w, nil
}

// outputTo directs what the worker writes to where the options of s say: those of
// the call that began last, where several run at once. What has been ended
// writes nowhere else any more.
func (w *poolWorker) outputTo(s *setup, out, stderr *sink) {
	w.outMu.Lock()
	defer w.outMu.Unlock()
	if w.outEnded {
		return
	}
	ts := &w.pool.set.targets
	for _, x := range []struct {
		sink *sink
		have **target
		want *target
	}{{out, &w.stdout, ts.get(s.stdout)}, {stderr, &w.stderr, ts.get(s.stderr)}} {
		x.sink.direct(x.want) // first: it may need to hold the other
		if *x.have != nil {
			ts.put(*x.have)
		}
		*x.have = x.want
	}
}

// stepError says at which step of a start something went wrong.
type stepError struct {
	step string
	err  error
}

// stepEnter is the step in which an instance is made.
const stepEnter = "enter"

func (e *stepError) Error() string { return "step " + e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// notStartedError is the error of a call for which no worker could be started.
func notStartedError(ctx context.Context, s *setup, err error) error {
	if errdefs.CodeOf(err) == "E9004" {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		if e, ok := cause.(*errdefs.Error); ok && e.Code == "E9015" {
			return errdefs.Wrap(e.Code, e.Op, e.Message, err)
		}
	}
	if step, ok := errors.AsType[*stepError](err); ok {
		cause := step.err
		if lost, ok := errors.AsType[*WorkerLostError](cause); ok && lost.Stderr != "" {
			cause = fmt.Errorf("%w; it wrote: %s", cause, strings.TrimSpace(lost.Stderr))
		}
		return errdefs.Wrap("E9015", s.name, "", &stepError{step.step, cause})
	}
	return errdefs.Wrap("E9015", s.name, "", err)
}

// workerEnv is the environment that makes a process a worker of unit.
func workerEnv(s *setup, secrets map[string]Secret, token, digest string) map[string]string {
	env := maps.Clone(s.opts.Env)
	if env == nil {
		env = map[string]string{}
	}
	for name, v := range secrets {
		env[name] = v.Reveal()
	}
	env[worker.EnvUnit] = s.unit
	env[worker.EnvToken] = token
	env[worker.EnvConn] = "3"
	env[worker.EnvCounters] = "4"
	env[worker.EnvDigest] = digest
	if o, ok := raceenv.Lookup(); ok {
		env[raceenv.Name] = o
	}
	return env
}

// sandboxMaker starts workers in sandboxes of a client's provider.
type sandboxMaker struct {
	c     *Client
	files workerFiles
}

func newSandboxMaker(c *Client) *sandboxMaker { return &sandboxMaker{c: c, files: workerFiles{c: c}} }

func (m *sandboxMaker) start(ctx context.Context, s *setup, stdout, stderr func([]byte)) (_ *made, err error) {
	file, err := m.files.likely(ctx, s)
	if err != nil {
		return nil, &stepError{"upload", err}
	}
	var artifacts []providers.Artifact
	if file.Digest != "" {
		artifacts = append(artifacts, providers.Artifact{Digest: file.Digest, Path: file.Path})
	}
	o := s.opts
	secrets, err := s.resolveSecrets(ctx)
	if err != nil {
		return nil, &stepError{"create", err}
	}
	places, err := places(o.Files)
	if err != nil {
		return nil, &stepError{"create", err}
	}
	sb, err := m.c.createForPool(ctx, &CreateOptions{
		Provider: o.Provider, Template: o.Template, Image: o.Image,
		CPU: o.CPU, Memory: o.Memory, Disk: o.Disk, GPU: o.GPU, Volumes: o.Volumes,
		Network: o.Network, User: o.User, WorkDir: o.WorkDir,
	}, poolNeeds{artifacts, places})
	if err != nil {
		return nil, &stepError{"create", err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sb.Close())
		}
	}()
	if err := sb.putMounts(ctx, o.Files); err != nil {
		return nil, &stepError{"upload", err}
	}
	token := newToken()
	start := func() (*workerProc, error) {
		uploading, span := s.span(ctx, spanUpload)
		path, err := sb.ensureArtifact(uploading, file, o.User)
		span.end(err, slog.String(attrSandbox, sb.ID()))
		if err != nil {
			return nil, &stepError{"upload", err}
		}
		proc, err := sb.startWorker(ctx, workerSpec{
			Path: path, Env: workerEnv(s, secrets, token, file.Digest),
			User: o.User, Dir: o.WorkDir, Stdout: stdout, Stderr: stderr,
		})
		if err != nil {
			return nil, &stepError{"start", err}
		}
		return proc, nil
	}
	var proc *workerProc
	if file.Digest != "" {
		proc, err = start()
	}
	if proc == nil {
		platform, platformErr := m.files.platformOf(ctx, s, sb)
		switch {
		case platformErr == nil && platform != file.Platform:
			if file, err = m.files.forPlatform(ctx, s, platform); err != nil {
				return nil, &stepError{"upload", err}
			}
			proc, err = start()
		case err == nil: // nothing was tried
			return nil, &stepError{"upload", platformErr}
		}
	}
	if err != nil {
		if lacking := missing(ctx, sb, file); lacking != nil {
			err = &stepError{"start", lacking}
		}
		return nil, err
	}
	return &made{
		conn: proc.conn, proc: proc, token: token, digest: file.Digest, sandbox: sb.ID(),
		end:    func(context.Context) error { return sb.Close() },
		extend: func(ctx context.Context) (time.Duration, error) { return extend(ctx, sb) },
	}, nil
}

// poolLifetime is how far the end of a worker's sandbox is moved each time,
// where it would end by itself. Should this program end without a word, the
// sandbox follows within that time.
const poolLifetime = 10 * time.Minute

// extend moves the end of a sandbox and says when it must be moved again; zero
// when the sandbox has none.
func extend(ctx context.Context, sb *Sandbox) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	info, err := sb.Info(ctx)
	if err != nil || info.ExpiresAt.IsZero() {
		return 0, err
	}
	end, err := sb.SetLifetime(ctx, poolLifetime)
	return max(time.Until(end)/3, time.Second), err
}

// libraryDirs are where dynamic loaders look, beside what they are configured
// to.
var libraryDirs = []string{
	"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib",
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
}

// missing explains a start that failed by what the executable needs and the
// sandbox lacks; nil when it lacks nothing.
func missing(ctx context.Context, sb *Sandbox, self artifact.Self) error {
	f, err := self.Open()
	if err != nil {
		return nil
	}
	defer f.Close()
	needs, err := artifact.Inspect(f)
	if err != nil {
		return nil
	}
	files := sb.FS(ctx)
	lacks := needs.Missing(func(path string) bool {
		_, err := files.Stat(path)
		return !errors.Is(err, ErrPathNotFound)
	}, libraryDirs)
	if len(lacks) == 0 {
		return nil
	}
	return errdefs.New("E9011", "start worker", fmt.Sprintf("the executable needs %s", strings.Join(lacks, ", ")))
}

// envText is a map of names as part of a pool's key.
func envText(env map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "%s=%s\n", k, env[k])
	}
	return b.String()
}
