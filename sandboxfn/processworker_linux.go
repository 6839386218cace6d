package sandboxfn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// processPools returns the workers of a mode: processes of this executable.
func processPools(m *worker.Mode) *poolSet {
	return m.Keep(func() (any, func(context.Context) error) {
		ps := newPools(processMaker{}, slog.New(slog.DiscardHandler))
		return ps, ps.close
	}).(*poolSet)
}

// processMaker starts workers as plain processes, without a sandbox. It does
// what the runtime does in one: the connection is descriptor 3, the output
// counters are descriptor 4.
type processMaker struct{}

func (processMaker) start(ctx context.Context, s *setup, stdout, stderr func([]byte)) (*made, error) {
	self, err := artifact.Own()
	if err != nil {
		return nil, &stepError{"upload", err}
	}
	secrets, err := s.resolveSecrets(ctx)
	if err != nil {
		return nil, &stepError{"create", err}
	}
	token := newToken()
	p, err := startProcess(s, self, secrets, token, stdout, stderr)
	if err != nil {
		return nil, &stepError{"start", err}
	}
	return &made{
		conn: p.conn, proc: p, token: token, digest: self.Digest,
		end: func(ctx context.Context) error {
			err := p.kill(ctx)
			select {
			case <-p.done():
				return err
			case <-ctx.Done():
				return errors.Join(err, context.Cause(ctx))
			}
		},
	}, nil
}

// process is a worker that is a plain process.
type process struct {
	conn   net.Conn
	cmd    *exec.Cmd
	ended  chan struct{}
	status workerExit // valid after ended

	mu       sync.Mutex
	given    [2]uint64     // guarded by mu
	progress chan struct{} // guarded by mu; closed and replaced when given grows
}

func startProcess(s *setup, self artifact.Self, secrets map[string]Secret, token string, stdout, stderr func([]byte)) (_ *process, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	keep := func(f *os.File, err error) *os.File {
		if err == nil {
			files = append(files, f)
		}
		return f
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := keep(os.NewFile(uintptr(pair[0]), "connection"), nil), keep(os.NewFile(uintptr(pair[1]), "connection"), nil)
	// A worker that is killed removes nothing.
	scratch, err := os.MkdirTemp("", "sandboxfn-worker-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(scratch)
		}
	}()
	c, err := worker.NewCapture()
	if err != nil {
		return nil, err
	}
	files = append(files, c.Stdout, c.Stderr, c.Counters)
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	p := &process{ended: make(chan struct{}), progress: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path: self.Path, Args: []string{self.Name}, Dir: s.opts.WorkDir, Env: append(processEnv(s, secrets, token, self.Digest), worker.EnvScratch+"="+scratch),
		Stdout: c.Stdout, Stderr: c.Stderr, ExtraFiles: []*os.File{theirs, c.Counters},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if p.conn, err = net.FileConn(ours); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { c.Take(0, func(b []byte) { p.give(0, b, stdout) }) })
	pumps.Go(func() { c.Take(1, func(b []byte) { p.give(1, b, stderr) }) })
	go func() {
		p.wait()
		c.Ended()
		pumps.Wait()
		c.Close()
		removeTree(scratch)
		close(p.ended)
	}()
	return p, nil
}

// processEnv is the environment of the worker: what its options give, and of
// the caller's what a process needs to run at all.
func processEnv(s *setup, secrets map[string]Secret, token, digest string) []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	for k, v := range workerEnv(s, secrets, token, digest) {
		env = append(env, k+"="+v)
	}
	return env
}

func (p *process) wait() {
	p.cmd.Wait()
	ws, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	p.status = workerExit{Code: p.cmd.ProcessState.ExitCode()}
	if ws.Signaled() {
		p.status.Code, p.status.Signal = -1, ws.Signal().String()
	}
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
}

// give hands on what the worker has written.
func (p *process) give(stream int, b []byte, to func([]byte)) {
	to(b)
	p.mu.Lock()
	p.given[stream] += uint64(len(b))
	close(p.progress)
	p.progress = make(chan struct{})
	p.mu.Unlock()
}

func (p *process) kill(context.Context) error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	if err == syscall.ESRCH {
		return nil
	}
	return err
}

func (p *process) done() <-chan struct{} { return p.ended }

func (p *process) exit() workerExit { return p.status }

func (p *process) delivered() (stdout, stderr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given[0], p.given[1]
}

func (p *process) waitDelivered(ctx context.Context, stdout, stderr uint64) error {
	for {
		p.mu.Lock()
		ok, moved := p.given[0] >= stdout && p.given[1] >= stderr, p.progress
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-p.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *process) close() { p.conn.Close() }
