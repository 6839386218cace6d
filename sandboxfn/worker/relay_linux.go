package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// relay is the whole of a process that stands between a caller without a channel
// and its worker (docs/protocol.md, "Frames over the process API"). It starts
// the program once more, as a worker like every other, and puts what the worker
// sends and prints on its own standard output as records, behind the mark; its
// standard input is what the caller sends. Nothing else of the program runs in
// it: it takes over when this package is initialised, and ends as the worker
// does.
func relay(mark string) {
	if len(mark) < minTokenSize {
		relayFailed(errors.New(EnvMark + " is missing or too short"))
	}
	conn, theirs, err := socketPair()
	if err != nil {
		relayFailed(err)
	}
	c, err := NewCapture()
	if err != nil {
		relayFailed(err)
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		relayFailed(err)
	}
	// What has been printed here is printed there, too: the caller drops it.
	end := []byte(mark + "\n")
	if _, err := os.Stderr.Write(end); err != nil {
		relayFailed(err)
	}
	if _, err := os.Stdout.Write(end); err != nil {
		relayFailed(err)
	}
	// The worker ends with the thread that started it: that is the first one,
	// to which goroutine 1 is bound while packages are initialised.
	p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   relayedEnv(),
		Files: []*os.File{nothing, c.Stdout, c.Stderr, theirs, c.Counters},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		relayFailed(err)
	}
	theirs.Close()
	nothing.Close()
	c.CloseGiven()
	os.Exit(relayUntilEnd(p, conn, c))
}

func relayFailed(err error) {
	fmt.Fprintf(os.Stderr, "sandboxfn: worker: %v\n", err)
	os.Exit(2)
}

func socketPair() (ours, theirs *os.File, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(pair[0]), "connection"), os.NewFile(uintptr(pair[1]), "connection"), nil
}

// relayedEnv is the environment of the worker: that of the relay, but for how it
// is connected.
func relayedEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == EnvConn || name == EnvMark || name == EnvCounters
	})
	return append(env, EnvConn+"=3", EnvCounters+"=4")
}

// relayUntilEnd passes everything on until the worker has ended, and returns
// its status.
func relayUntilEnd(p *os.Process, conn *os.File, c *Capture) int {
	out := &recordWriter{w: os.Stdout}
	go func() {
		io.CopyBuffer(onlyWriter{conn}, onlyReader{os.Stdin}, make([]byte, 64<<10))
		syscall.Shutdown(int(conn.Fd()), syscall.SHUT_WR)
	}()
	var pumps sync.WaitGroup
	pumps.Go(func() { c.Take(0, func(b []byte) { out.write(RecordStdout, b) }) })
	pumps.Go(func() { c.Take(1, func(b []byte) { out.write(RecordStderr, b) }) })
	pumps.Go(func() {
		buf := make([]byte, 256<<10)
		for {
			n, err := conn.Read(buf)
			if n > 0 {
				out.write(RecordFrames, buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
	state, err := p.Wait()
	c.Ended()
	pumps.Wait()
	if err != nil {
		relayFailed(err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		dieOf(ws.Signal())
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// dieOf ends this process by a signal, as another was ended.
func dieOf(sig syscall.Signal) {
	signal.Reset(sig)
	// The default action: rt_sigaction(2) with an empty struct. Package signal
	// leaves its own handler in place for some.
	var byDefault [4]uintptr
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	syscall.Kill(os.Getpid(), sig)
}

// recordWriter writes records of several goroutines. A caller that is gone ends
// the process: SIGPIPE.
type recordWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte // guarded by mu
}

func (r *recordWriter) write(kind RecordKind, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(b)
	r.buf = append(r.buf[:0], byte(kind), byte(n>>16), byte(n>>8), byte(n))
	r.buf = append(r.buf, b...)
	if _, err := r.w.Write(r.buf); err != nil {
		relayFailed(err)
	}
}

// onlyReader and onlyWriter hide what io.Copy would use instead of the buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
