//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// The network of a detached sandbox outlives the provider that made it: init
// keeps copies of the listeners, and the next provider that has the setting
// keep_network fetches them when it opens the state directory, or a link to the
// guest that has them. Until then what the sandbox connects to waits. A lock in its directory says who serves it.

const (
	fileNetLock  = "net.lock"
	fileNetNames = "net.names" // those that got an address later, one per line, in their order

	maxNetNames = maxNames * 256 // bytes
)

// savedNetwork is what a later provider needs to know.
type savedNetwork struct {
	Allow []string `json:"allow"`
	Proxy uint16   `json:"proxy"`
}

func (n *netPlan) saved() *savedNetwork {
	if n == nil || !n.keep {
		return nil
	}
	s := &savedNetwork{Proxy: n.proxy}
	for _, r := range n.rules {
		s.Allow = append(s.Allow, r.String())
	}
	return s
}

// kept are the names of the listeners that init keeps.
func (n *netPlan) kept() []string {
	if n == nil || !n.keep {
		return nil
	}
	var out []string
	for _, l := range n.listeners() {
		out = append(out, l.name)
	}
	return out
}

// keptListeners are the names and descriptors that init has of those.
func keptListeners(names []string) (have []string, fds []int) {
	for _, name := range names {
		if fd := nsinit.FD(keptPrefix + name); fd >= 0 {
			have, fds = append(have, name), append(fds, fd)
		}
	}
	return have, fds
}

// sendListeners answers opNetwork: a line, and the descriptors with it. Where
// there is a guest, the line, and then the connection is its link.
func (ctl *controller) sendListeners(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errForm
	}
	if ctl.links != nil {
		_, err := u.Write([]byte("{}\n"))
		if err == nil {
			err = handOver(u, ctl.links)
		}
		return errors.Join(err, errHandedOver)
	}
	names, fds := keptListeners(ctl.listeners)
	line, err := json.Marshal(controlAnswer{Listeners: names})
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = u.WriteMsgUnix(append(line, '\n'), oob, nil)
	return err
}

// fetchListeners asks the init of e for its listeners.
func (e *entry) fetchListeners(ctx context.Context) (_ []netListener, err error) {
	c, stop, err := e.askNetwork(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer stop()
	b, oob := make([]byte, 2*controlLine), make([]byte, unix.CmsgSpace(4*256))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	files, err := sentFiles(oob[:oobn])
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	for n > 0 && n < len(b) && b[n-1] != '\n' {
		more, err := c.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += more
	}
	var a controlAnswer
	if err := json.Unmarshal(b[:n], &a); err != nil || a.Error != "" || len(a.Listeners) != len(files) {
		return nil, errors.Join(fmt.Errorf("answer of init: %s", clip(a.Error)), err)
	}
	var out []netListener
	for i, f := range files {
		out = append(out, netListener{a.Listeners[i], f})
	}
	files = nil
	return out, nil
}

// sentFiles takes all descriptors out of control messages.
func sentFiles(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, nil
}

// keepNames makes a table go on in a file, and begin with what is there.
func keepNames(dir *folder, rules netrule.List) (*nameTable, io.Closer, error) {
	t := newNameTable(rules.Names())
	b, err := dir.read(fileNetNames, maxNetNames)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for line := range strings.Lines(string(b)) {
		name, complete := strings.CutSuffix(line, "\n")
		if _, known := t.index[name]; complete && !known && len(t.names) < maxNames {
			t.addLocked(name) // nobody else has the table yet
		}
	}
	f, err := dir.open(fileNetNames, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	t.grown = func(name string) { _, _ = f.WriteString(name + "\n") } // without it, the next keeper has another address for it
	return t, f, nil
}

// A keptNet is the network of a sandbox that another provider made.
type keptNet struct {
	egress *egress
	pidfd  *os.File
}

// resumeNetworks takes over the networks that nobody serves.
func (p *Provider) resumeNetworks(ctx context.Context, t *tree) error {
	if !p.keepNetwork {
		return nil
	}
	ids, err := t.boxes.names()
	errs := []error{err}
	for _, id := range ids {
		if checkID("", id) != nil {
			continue
		}
		c, err := t.config(id)
		if err != nil || c.Network == nil {
			continue // ended, or none to keep
		}
		if err := p.resumeNetwork(ctx, t, c); err != nil && !errors.Is(err, errBusy) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errGone) {
			errs = append(errs, fmt.Errorf("network of sandbox %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Provider) resumeNetwork(ctx context.Context, t *tree, c savedConfig) error {
	e, err := t.openEntry(c.ID)
	if err != nil {
		return err
	}
	defer e.close()
	var state savedState
	if err := e.load(fileState, &state); err != nil {
		return err
	}
	rules, err := netrule.ParseList(c.Network.Allow)
	if err != nil {
		return err
	}
	pidfd, err := state.open()
	if err != nil {
		return err
	}
	plan := &netPlan{rules: rules, proxy: c.Network.Proxy, keep: true}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	eg, err := p.openEgress(t, c.ID, plan, func() ([]netListener, error) { return e.networkOf(ctx, c.Engine) })
	if err != nil {
		pidfd.Close()
		return err
	}
	k := &keptNet{eg, pidfd}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		eg.close()
		pidfd.Close()
		return nil
	}
	p.kept = append(p.kept, k)
	p.wg.Add(1)
	p.mu.Unlock()
	go func() {
		defer p.wg.Done()
		defer k.pidfd.Close()
		_ = waitPidfd(k.pidfd) // the sandbox has ended, or release was called
		k.egress.close()
	}()
	return nil
}

// release stops serving; init still has the listeners.
func (k *keptNet) release() { _ = k.pidfd.SetReadDeadline(time.Unix(1, 0)) }
