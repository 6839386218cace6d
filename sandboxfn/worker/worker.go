// Package worker is the guest half of a function call. It is linked into the
// user's own program, which is started a second time, in a sandbox, as a
// worker: package sandboxfn then hands it the functions of the program and it
// serves calls until its caller is gone.
//
// Programs don't use it. Package sandboxtest does, to say where calls run.
package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
)

// Variables of the environment that make a process a worker. They are taken out
// of it when this package is initialised, which is before the initialisation of
// every package that uses sandboxfn.
const (
	EnvUnit      = "SANDBOX_WORKER"            // what to take over
	EnvToken     = "SANDBOX_WORKER_TOKEN"      // the caller's mark, which comes back in the hello
	EnvConn      = "SANDBOX_WORKER_FD"         // descriptor of the connection, or ConnStdio
	EnvMark      = "SANDBOX_WORKER_MARK"       // with ConnStdio: the line behind which records come
	EnvCounters  = "SANDBOX_WORKER_COUNTER_FD" // descriptor of the output counters
	EnvDigest    = "SANDBOX_WORKER_DIGEST"     // of the executable
	EnvScratch   = "SANDBOX_WORKER_SCRATCH"    // where files of calls go; not set: os.TempDir
	minTokenSize = 16
)

// ConnStdio says that there is no connection: frames and output travel as
// records on the standard streams of a relay.
const ConnStdio = "stdio"

// A Function is one function that a worker serves.
type Function struct {
	ID, Schema string

	// Run decodes the arguments, runs the function and puts what came of it
	// into out. A panic that leaves it is the user's.
	Run func(ctx context.Context, in *envelope.OpenedRequest, out *envelope.Response)
}

// launch is what the environment says.
var launch = takeEnv()

type settings struct{ unit, token, conn, counters, digest, scratch string }

func takeEnv() settings {
	unit, ok := os.LookupEnv(EnvUnit)
	if !ok {
		return settings{}
	}
	s := settings{unit, os.Getenv(EnvToken), os.Getenv(EnvConn), os.Getenv(EnvCounters), os.Getenv(EnvDigest), os.Getenv(EnvScratch)}
	if s.conn == ConnStdio {
		relay(os.Getenv(EnvMark))
	}
	for _, name := range []string{EnvUnit, EnvToken, EnvConn, EnvCounters, EnvDigest, EnvScratch} {
		os.Unsetenv(name)
	}
	for _, fd := range []string{s.conn, s.counters} {
		if n, err := strconv.Atoi(fd); err == nil && n > 2 {
			closeOnExec(n)
		}
	}
	return s
}

// Scratch is a directory that goes with this worker; empty: it has none of its
// own, and os.TempDir is meant.
func Scratch() string { return launch.scratch }

// Unit is what this process is to take over; empty in a process that is no
// worker.
func Unit() string { return launch.unit }

// current is the server of a process that is a worker.
var current atomic.Pointer[server]

// Serving reports whether this process is a worker that serves calls.
func Serving() bool { return current.Load() != nil }

// Main serves calls of fs and ends the process when the caller is gone: with
// status 0 when it says so or its connection ends, with 2 and a message when
// the environment does not make this process a worker.
func Main(fs []Function, errs *envelope.Errors) {
	os.Exit(run(launch, fs, errs))
}

func run(l settings, fs []Function, errs *envelope.Errors) int {
	s, err := open(l)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandboxfn: %s=%s is set, but %v; it is meant for the caller's own use: unset it\n", EnvUnit, l.unit, err)
		return 2
	}
	current.Store(s)
	s.offer(fs, errs)
	if err := s.hello(l, fs); err != nil {
		fmt.Fprintf(os.Stderr, "sandboxfn: worker: %v\n", err)
		return 2
	}
	records.open(s)
	return s.serve()
}

// offer makes functions known.
func (s *server) offer(fs []Function, errs *envelope.Errors) {
	s.errors = errs
	for i := range fs {
		s.functions[fs[i].ID] = &fs[i]
	}
}

// Serve serves calls of fs on conn, in this process, until the connection ends.
// The hello has the given unit and token. base is the context from which that of
// a call comes. Of functions that run at the end the contexts end.
func Serve(conn net.Conn, unit, token string, fs []Function, errs *envelope.Errors, base func(call uint64) context.Context) {
	defer conn.Close()
	s := newServer(conn, &output{})
	s.base = base
	s.offer(fs, errs)
	if err := s.hello(settings{unit: unit, token: token}, fs); err == nil {
		s.serve()
	}
	s.leave()
}

func open(l settings) (*server, error) {
	if len(l.token) < minTokenSize {
		return nil, errors.New(EnvToken + " is missing or too short")
	}
	fd, err := strconv.Atoi(l.conn)
	if err != nil {
		return nil, errors.New(EnvConn + " is no descriptor")
	}
	conn, err := openConn(fd)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is no connection: %w", fd, err)
	}
	out := &output{}
	if l.counters != "" {
		fd, err := strconv.Atoi(l.counters)
		if err != nil {
			return nil, errors.New(EnvCounters + " is no descriptor")
		}
		if out, err = openOutput(fd); err != nil {
			return nil, fmt.Errorf("descriptor %d holds no counters: %w", fd, err)
		}
	}
	return newServer(conn, out), nil
}
