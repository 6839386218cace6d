package sandboxfn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

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
	counts *[2]uint64 // shared with the worker: bytes taken, counted before they are
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
	counters, err := os.CreateTemp("", "sandboxfn-counters-")
	if err != nil {
		return nil, err
	}
	files = append(files, counters)
	os.Remove(counters.Name())
	if err := counters.Truncate(16); err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(counters.Fd()), 0, 16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	p := &process{counts: (*[2]uint64)(unsafe.Pointer(&mem[0])), ended: make(chan struct{}), progress: make(chan struct{})}
	defer func() {
		if err != nil {
			syscall.Munmap(mem)
		}
	}()
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files = append(files, outW)
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		return nil, err
	}
	files = append(files, errW)
	p.cmd = &exec.Cmd{
		Path: self.Path, Args: []string{self.Name}, Dir: s.opts.WorkDir, Env: append(processEnv(s, secrets, token, self.Digest), worker.EnvScratch+"="+scratch),
		Stdout: outW, Stderr: errW, ExtraFiles: []*os.File{theirs, counters},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if p.conn, err = net.FileConn(ours); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		outR.Close()
		errR.Close()
		return nil, err
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(outR, 0, stdout) })
	pumps.Go(func() { p.pump(errR, 1, stderr) })
	go func() {
		p.wait()
		// What is in the pipes is read; descendants that hold them are not waited for.
		past := time.Unix(1, 0)
		outR.SetReadDeadline(past)
		errR.SetReadDeadline(past)
		pumps.Wait()
		removeTree(scratch)
		syscall.Munmap(mem)
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

// pump hands on what comes out of a pipe. It counts before it takes, so that a
// worker that finds the pipe empty finds everything in the counter.
func (p *process) pump(r *os.File, stream int, to func([]byte)) {
	defer r.Close()
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		got, end := 0, false
		take := func(fd uintptr) bool {
			n, hup := waiting(fd)
			if n == 0 {
				end = hup
				return hup
			}
			n = min(n, len(buf))
			atomic.AddUint64(&p.counts[stream], uint64(n))
			got, _ = syscall.Read(int(fd), buf[:n])
			return true
		}
		err := raw.Read(take)
		if err != nil { // the process has ended: what is still there, and no more
			raw.Control(func(fd uintptr) {
				if n, _ := waiting(fd); n > 0 {
					take(fd)
				} else {
					end = true
				}
			})
		}
		if got > 0 {
			to(buf[:got])
			p.mu.Lock()
			p.given[stream] += uint64(got)
			close(p.progress)
			p.progress = make(chan struct{})
			p.mu.Unlock()
		}
		if end {
			return
		}
	}
}

// waiting is how many bytes are in a pipe, and whether nobody can write more.
func waiting(fd uintptr) (n int, hup bool) {
	// poll(2)
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd)}
	const pollHup = 0x10
	var zero syscall.Timespec
	syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
	var size int32
	syscall.RawSyscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&size)))
	return int(size), poll.revents&pollHup != 0
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
