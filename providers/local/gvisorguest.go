//go:build linux

package local

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

// serveGuest is serveInside in pid 1 of a guest of gVisor. Who may connect and
// when the sandbox ends is decided outside, by superviseGuest.
func serveGuest(in *inside, conf serveConfig, log *slog.Logger) error {
	if len(in.extra) != len(conf.Groups) {
		return fmt.Errorf("%d descriptors were passed, want %d", len(in.extra), len(conf.Groups))
	}
	groups := map[string][]*os.File{}
	for i, kind := range conf.Groups {
		groups[kind] = append(groups[kind], in.extra[i])
	}
	frost, err := newFreezer(conf.Freezer, nil)
	if err != nil {
		return err
	}
	pause := &pauser{freezer: frost}
	requests, err := newHandedListener(in.control)
	if err != nil {
		return fmt.Errorf("life-cycle requests: %w", err)
	}
	endless := &life{deadline: math.MaxInt64}
	go serveControl(requests, &controller{token: conf.Token, life: endless, pause: pause, usage: &usageMeter{}, log: log})
	spawn := groupSpawner(in, groups)
	opts, err := runtimeOptions(in, conf, pause, spawn, groups, nil, log)
	if err != nil {
		return err
	}
	opts.CommandOOMScore = 0 // its kernel ends nobody for want of memory
	srv, err := server.New(opts)
	if err != nil {
		return err
	}
	l, err := newHandedListener(in.listener)
	if err != nil {
		return fmt.Errorf("runtime connections: %w", err)
	}
	if in.links != nil {
		if err := serveGuestNet(in.links, conf.Listeners); err != nil {
			return err
		}
	}
	if err := in.ready(nil); err != nil {
		return err
	}
	in.settle()
	err = srv.Serve(l)
	runtime.KeepAlive(in)
	return err
}

// handedListener accepts connections that forward hands over at the other end
// of a socket: gVisor lets nobody listen on, or connect to, a socket of the host.
type handedListener struct{ from *net.UnixConn }

func newHandedListener(f *os.File) (*handedListener, error) {
	if f == nil {
		return nil, errors.New("its socket was not passed")
	}
	defer f.Close()
	u, err := unixConn(f)
	if err != nil {
		return nil, err
	}
	return &handedListener{u}, nil
}

// Accept waits for the next connection. One that cannot be taken is dropped.
func (l *handedListener) Accept() (net.Conn, error) {
	for {
		var b [1]byte
		oob := make([]byte, unix.CmsgSpace(4))
		n, oobn, _, _, err := l.from.ReadMsgUnix(b[:], oob)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, net.ErrClosed
		}
		if c, err := handedConn(oob[:oobn]); err == nil {
			return c, nil
		}
	}
}

func handedConn(oob []byte) (net.Conn, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var got []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err == nil {
			got = append(got, fds...)
		}
	}
	var c net.Conn
	err = errors.New("no descriptor was sent")
	for i, fd := range got {
		f := os.NewFile(uintptr(fd), "connection")
		if i == 0 {
			unix.CloseOnExec(fd)
			c, err = net.FileConn(f)
		}
		f.Close()
	}
	return c, err
}

// Close makes Accept fail.
func (l *handedListener) Close() error { return l.from.Close() }

// Addr is that of the socket that connections arrive on.
func (l *handedListener) Addr() net.Addr { return l.from.LocalAddr() }
