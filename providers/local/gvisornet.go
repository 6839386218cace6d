//go:build linux

package local

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A guestNet is the part of a network list that is in pid 1 of a guest of
// gVisor: it accepts, and carries each connection to whoever serves the link.
// It decides nothing.
type guestNet struct {
	slots chan struct{}

	calls sync.Mutex // held from a request to its answer

	mu   sync.Mutex // guards link
	come *sync.Cond // link is not nil any more
	link *net.UnixConn
}

// A client that is gone may leave connections whose programs do not read: they
// take room here, and none there.
const maxGuestConns = maxInside + 128

// guestCopy is how much of a connection is held in each direction, in bytes.
const guestCopy = 16 << 10

// serveGuestNet serves the listeners with names for the life of the guest. Links
// come from links.
func serveGuestNet(links *os.File, names []string) error {
	handed, err := newHandedListener(links)
	if err != nil {
		return fmt.Errorf("links of the network: %w", err)
	}
	n := &guestNet{slots: make(chan struct{}, maxGuestConns)}
	n.come = sync.NewCond(&n.mu)
	have, fds := keptListeners(names)
	if len(have) != len(names) {
		return fmt.Errorf("%d listeners of the network were made, want %d", len(have), len(names))
	}
	for i, name := range have {
		f := os.NewFile(uintptr(fds[i]), name)
		if strings.HasPrefix(name, "udp ") {
			c, err := net.FilePacketConn(f)
			f.Close()
			if err != nil {
				return fmt.Errorf("listener on %s: %w", name, err)
			}
			go n.serveUDP(c)
			continue
		}
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("listener on %s: %w", name, err)
		}
		go n.accept(l)
	}
	go n.follow(handed)
	return nil
}

// follow takes the newest link.
func (n *guestNet) follow(links *handedListener) {
	for {
		c, err := links.Accept()
		if err != nil {
			return
		}
		l, ok := c.(*net.UnixConn)
		if !ok {
			c.Close()
			continue
		}
		n.mu.Lock()
		if n.link != nil {
			n.link.Close()
		}
		n.link = l
		n.come.Broadcast()
		n.mu.Unlock()
	}
}

// ask sends a request, as often as the link is lost before the answer is read.
// While nobody serves, it waits, and so do those who connect.
func (n *guestNet) ask(request []byte, answer func(*net.UnixConn) error) {
	n.calls.Lock()
	defer n.calls.Unlock()
	for {
		n.mu.Lock()
		for n.link == nil {
			n.come.Wait()
		}
		l := n.link
		n.mu.Unlock()
		_, err := l.Write(request)
		if err == nil {
			err = answer(l)
		}
		if err == nil {
			return
		}
		n.mu.Lock()
		if n.link == l {
			n.link = nil
		}
		n.mu.Unlock()
		l.Close()
	}
}

func (n *guestNet) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			if pauseUnlessClosed(err) {
				continue
			}
			return
		}
		in := c.(*net.TCPConn)
		select {
		case n.slots <- struct{}{}:
		default:
			reset(in)
			continue
		}
		out := n.open(addrOf(in.LocalAddr()))
		if out == nil {
			<-n.slots
			reset(in)
			continue
		}
		go func() {
			defer func() { <-n.slots }()
			carry(in, out)
		}()
	}
}

// open asks for the other side of a connection; nil: it is refused.
func (n *guestNet) open(at netip.AddrPort) (out *framedConn) {
	n.ask(linkRequest(linkConn, linkAddressOf(at)), func(l *net.UnixConn) error {
		var b [1]byte
		oob := make([]byte, unix.CmsgSpace(4))
		size, oobn, _, _, err := l.ReadMsgUnix(b[:], oob)
		if err != nil {
			return err
		}
		if size == 0 {
			return io.EOF
		}
		if b[0] != linkTaken {
			return nil
		}
		c, err := handedConn(oob[:oobn])
		if err != nil {
			return nil // out of descriptors: this one only
		}
		if u, ok := c.(*net.UnixConn); ok {
			out = &framedConn{UnixConn: u, at: at}
		} else {
			c.Close()
		}
		return nil
	})
	return out
}

// carry copies both ways until both sides have ended. What resets one resets the
// other.
func carry(in *net.TCPConn, out *framedConn) {
	fail := sync.OnceFunc(func() {
		for _, c := range []insideConn{in, out} {
			_ = c.SetLinger(0)
			c.Close()
		}
	})
	pass := func(to, from insideConn) {
		// Without the shortcuts of io.Copy, which gVisor has not.
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, guestCopy))
		if err != nil {
			fail()
			return
		}
		_ = to.CloseWrite() // an error shows in the other direction, which may have ended in order
	}
	var wg sync.WaitGroup
	wg.Go(func() { pass(in, out) })
	pass(out, in)
	wg.Wait()
	in.Close()
	out.Close()
}

// serveUDP passes questions on and sends the answers.
func (n *guestNet) serveUDP(c net.PacketConn) {
	serveQuestions(c, pauseUnlessClosed, n.question)
}

// question returns the answer to a message of DNS; empty: there is none.
func (n *guestNet) question(q []byte) (answer []byte) {
	n.ask(linkRequest(linkQuestion, q), func(l *net.UnixConn) error {
		var head [2]byte
		if _, err := io.ReadFull(l, head[:]); err != nil {
			return err
		}
		answer = make([]byte, binary.BigEndian.Uint16(head[:]))
		_, err := io.ReadFull(l, answer)
		return err
	})
	return answer
}
