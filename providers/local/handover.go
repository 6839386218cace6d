//go:build linux

package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
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
// is for. When the client wants nothing any more, or is gone, init ends.
func (in *inside) awaitPurpose(conf *serveConfig) error {
	c, err := net.FileConn(in.handover)
	if err != nil {
		return fmt.Errorf("wait for a purpose: %w", err)
	}
	defer c.Close()
	in.handover.Close()
	if err := in.ready(nil); err != nil {
		return err
	}
	var p purpose
	err = json.NewDecoder(io.LimitReader(c, maxPurpose)).Decode(&p)
	if errors.Is(err, io.EOF) {
		os.Exit(0)
	}
	if err != nil {
		return fmt.Errorf("read the purpose: %w", err)
	}
	conf.purpose = p
	return nil
}

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
