//go:build linux

package local

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The sockets of a guest of gVisor are its kernel's and cannot be handed out. So
// its pid 1 accepts, and asks over a link, a connection to the client, what is
// to become of it: the client makes a pair of sockets, sends one, and serves the
// other as if it had accepted it, see framedConn. Who asks is not trusted: more
// than any program in the sandbox could have connected to it cannot have.

// A request on a link is its kind, two bytes of length, and so many of what it
// is about. There is one at a time.
const (
	linkConn     = 'c' // 16 bytes of the address that was connected to and 2 of its port; answered by one of the two below
	linkQuestion = 'q' // a message of DNS; answered by two bytes of length and so many of the answer, none where there is none

	linkRefused = 'n'
	linkTaken   = 'y' // a descriptor comes with it
)

const (
	linkHead    = 3 // bytes of what comes before
	linkAddress = 18
)

// linkName is the name of a link among listeners.
const linkName = "link"

func linkRequest(kind byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(body)))
	return append(b, body...)
}

func linkAddressOf(at netip.AddrPort) []byte {
	a := at.Addr().As16()
	return binary.BigEndian.AppendUint16(a[:], at.Port())
}

var errLink = errors.New("malformed request")

// serveLink answers a guest until the link is closed.
func (e *egress) serveLink(l *net.UnixConn) {
	defer l.Close()
	b := make([]byte, linkHead+dnsQuestion)
	for {
		err := e.serveLinkOnce(l, b)
		switch {
		case err == nil:
			continue
		case e.ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE): // as when it is killed
			e.log.Warn("the network of a guest ends", "err", err)
		}
		return
	}
}

func (e *egress) serveLinkOnce(l *net.UnixConn, b []byte) error {
	if _, err := io.ReadFull(l, b[:linkHead]); err != nil {
		return err
	}
	kind, body := b[0], b[linkHead:]
	n := int(binary.BigEndian.Uint16(b[1:]))
	if n > len(body) || unread(l) {
		return errLink
	}
	body = body[:n]
	if _, err := io.ReadFull(l, body); err != nil {
		return err
	}
	switch {
	case kind == linkQuestion:
		answer, err := e.answerDNS(body)
		if err != nil {
			answer = nil
		}
		_, err = l.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		return err
	case kind == linkConn && n == linkAddress:
		return e.takeLinked(l, netip.AddrPortFrom(netip.AddrFrom16([16]byte(body)).Unmap(), binary.BigEndian.Uint16(body[16:])))
	}
	return errLink
}

// unread reports whether the guest has not read the last answer: descriptors
// that are on their way count for all of a user's sandboxes together.
func unread(l *net.UnixConn) bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return cerr != nil || err != nil || n > 0
}

// takeLinked is what accept does with one connection.
func (e *egress) takeLinked(l *net.UnixConn, at netip.AddrPort) error {
	if !e.slot(at) {
		_, err := l.Write([]byte{linkRefused})
		return err
	}
	ours, theirs, err := controlPair()
	for err != nil {
		if !e.pause(err) {
			<-e.inSlots
			return err
		}
		ours, theirs, err = controlPair()
	}
	defer theirs.Close()
	in := e.hold(&framedConn{UnixConn: ours, at: at})
	if in == nil {
		return net.ErrClosed
	}
	for {
		_, _, err = l.WriteMsgUnix([]byte{linkTaken}, unix.UnixRights(int(theirs.Fd())), nil)
		if !errors.Is(err, unix.ETOOMANYREFS) || !e.pause(err) { // of the user, on their way
			break
		}
	}
	if err != nil {
		in.Close()
		return err
	}
	e.wg.Go(func() { e.dispatch(in) })
	return nil
}

// networkOf gets what an egress serves a sandbox that runs with.
func (e *entry) networkOf(ctx context.Context, engine string) ([]netListener, error) {
	if engine == engineGVisor {
		return e.fetchLink(ctx)
	}
	return e.fetchListeners(ctx)
}

// fetchLink makes a connection to init the link of its guest, in the place of
// any other.
func (e *entry) fetchLink(ctx context.Context) ([]netListener, error) {
	c, stop, err := e.askNetwork(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer stop()
	// No further than the end of the line: then the guest speaks.
	var line []byte
	for b := make([]byte, 1); len(line) < controlLine && (len(line) == 0 || line[len(line)-1] != '\n'); {
		if _, err := io.ReadFull(c, b); err != nil {
			return nil, err
		}
		line = append(line, b[0])
	}
	var a controlAnswer
	if err := json.Unmarshal(line, &a); err != nil || a.Error != "" {
		return nil, errors.Join(fmt.Errorf("answer of init: %s", clip(a.Error)), err)
	}
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	return []netListener{{linkName, f}}, nil
}

// askNetwork sends opNetwork to the init of e. stop ends the effect of ctx on
// the connection, which is the caller's.
func (e *entry) askNetwork(ctx context.Context) (_ *net.UnixConn, stop func() bool, err error) {
	token, err := e.token()
	if err != nil {
		return nil, nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", e.dir.address(fileControl))
	if err != nil {
		return nil, nil, err
	}
	stop = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	line, err := json.Marshal(controlRequest{Token: token.Reveal(), Op: opNetwork})
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		stop()
		conn.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), stop, nil
}

// unixConn turns a socket that was passed as a file, which stays the caller's, into
// a connection.
func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a %T was passed", c)
	}
	return u, nil
}
