//go:build linux

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

// maxPurpose bounds a purpose as it travels, in bytes: JSON may write one byte
// of the environment as six.
const maxPurpose = 16 << 20

// purposeLimit bounds the time that a waiting init may take to read.
const purposeLimit = 10 * time.Second

// sendPurpose tells a waiting init what it is for.
func sendPurpose(c net.Conn, p purpose) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(purposeLimit)); err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// awaitPurpose says that the sandbox is built and waits, in init, for what it
// is for. When the client wants nothing any more, or is gone, init ends. It returns
// a server that fits the purpose, with opts, which it changes.
func (in *inside) awaitPurpose(conf *serveConfig, opts *server.Options) (*server.Server, error) {
	c, err := net.FileConn(in.handover)
	if err != nil {
		return nil, fmt.Errorf("wait for a purpose: %w", err)
	}
	defer c.Close()
	in.handover.Close()
	srv, err := server.New(opts)
	if err != nil {
		return nil, err
	}
	if err := rehearse(srv, conf.purpose); err != nil {
		return nil, fmt.Errorf("rehearse: %w", err)
	}
	in.settle()
	keepThreads(conf.Threads)
	if err := in.ready(nil); err != nil {
		return nil, err
	}
	var p purpose
	err = json.NewDecoder(io.LimitReader(c, maxPurpose)).Decode(&p)
	if errors.Is(err, io.EOF) {
		os.Exit(0)
	}
	if err != nil {
		return nil, fmt.Errorf("read the purpose: %w", err)
	}
	conf.purpose = p
	env := sandboxEnv(*conf)
	if opts.DefaultUser == p.User && opts.DefaultWorkDir == p.WorkDir && maps.Equal(opts.Env, env) {
		return srv, nil // as most are
	}
	ctx, cancel := context.WithTimeout(context.Background(), purposeLimit)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return nil, err
	}
	opts.DefaultUser, opts.DefaultWorkDir, opts.Env = p.User, p.WorkDir, env
	return server.New(opts)
}

// rehearse has the server answer a request on a connection of its own, and reads a
// purpose, so that the program's pages are in memory and its tables are made when
// it counts.
func rehearse(srv *server.Server, p purpose) error {
	b, err := json.Marshal(p)
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(b)).Decode(&p)
	}
	if err != nil {
		return err
	}
	ours, file, err := controlPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return err
	}
	srv.Prepare(0)
	l := &oneConn{conn: theirs, done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if err = ours.SetDeadline(time.Now().Add(purposeLimit)); err == nil {
		_, err = io.WriteString(ours, healthRequest)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, ours)
	}
	l.Close()
	if serr := <-served; !errors.Is(serr, net.ErrClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
	done chan struct{} // closed with the listener
	used bool
}

// Accept returns the connection, once, and then waits for Close.
func (l *oneConn) Accept() (net.Conn, error) {
	if !l.used {
		l.used = true
		return l.conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

// Close ends Accept.
func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr is that of the connection.
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// hungUp reports whether the other end of c is closed. Init says nothing there.
func hungUp(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	up := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := retryEINTR(func() (int, error) { return unix.Poll(p, 0) })
		up = err == nil && n == 0
	})
	return err != nil || !up
}
