//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Bounds of one sandbox's network. What is above them is refused at once. A
// connection that is copied takes two descriptors and two pipes.
const (
	maxInside  = 512 // connections from inside
	maxOutside = 256 // connections to the outside
)

// netSettings are those of the provider.
type netSettings struct {
	hosts  map[string][]netip.Addr // names that are not asked for, with addresses that need no rule
	trust  bool                    // what a client says of the name it wants is not compared
	lookup lookupFunc
}

// parseHosts reads the setting hosts.
func parseHosts(s string) (map[string][]netip.Addr, error) {
	hosts := map[string][]netip.Addr{}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		host, addr, _ := strings.Cut(item, "=")
		name, err := netrule.Name(strings.TrimSpace(host))
		if err != nil {
			return nil, err
		}
		a, err := netip.ParseAddr(strings.TrimSpace(addr))
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is not NAME=ADDRESS", clip(item))
		}
		hosts[name] = append(hosts[name], a.Unmap())
	}
	return hosts, nil
}

// A netListener is a socket that was made inside, or a link to where they are.
type netListener struct {
	name string // of a wantedListener, or linkName
	file *os.File
}

func closeListeners(list []netListener) {
	for _, l := range list {
		l.file.Close()
	}
}

// An egress is the way out of one sandbox: it accepts what its listeners get,
// decides, and copies. Nothing of it runs inside.
type egress struct {
	rules    netrule.List
	proxyAt  uint16
	settings netSettings
	has6     bool
	names    *nameTable
	lookups  *lookups
	audit    *netAudit
	log      *slog.Logger
	proxy    *proxy

	ctx      context.Context // ends with close
	cancel   context.CancelFunc
	inSlots  chan struct{}
	outSlots chan struct{}
	wg       sync.WaitGroup
	held     []closer // listeners
	owned    []closer // closed last

	mu     sync.Mutex // guards the rest
	conns  map[*inConn]struct{}
	closed bool
}

// newEgress takes over listeners, audit and what else is owned, whatever it
// returns, and begins to serve. What it does ends with close.
func newEgress(plan *netPlan, settings netSettings, names *nameTable, audit *netAudit, log *slog.Logger, listeners []netListener, owned []closer) (_ *egress, err error) {
	e := &egress{
		rules: plan.rules, proxyAt: plan.proxy, settings: settings, names: names, audit: audit, log: log,
		inSlots: make(chan struct{}, maxInside), outSlots: make(chan struct{}, maxOutside),
		conns: map[*inConn]struct{}{}, owned: owned,
	}
	// No call has a context for this: it goes on until close.
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.lookups = newLookups(e.ctx, settings.lookup)
	e.proxy = newProxy(e)
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	defer closeListeners(listeners)
	var streams []net.Listener
	var packets []net.PacketConn
	var links []*net.UnixConn
	for _, l := range listeners {
		if strings.HasPrefix(l.name, "udp ") {
			c, err := net.FilePacketConn(l.file)
			if err != nil {
				return nil, fmt.Errorf("listener on %s: %w", l.name, err)
			}
			e.held, packets = append(e.held, c), append(packets, c)
			continue
		}
		if l.name == linkName {
			c, err := unixConn(l.file)
			if err != nil {
				return nil, err
			}
			e.held, links = append(e.held, c), append(links, c)
			continue
		}
		c, err := net.FileListener(l.file)
		if err != nil {
			return nil, fmt.Errorf("listener on %s: %w", l.name, err)
		}
		e.held, streams = append(e.held, c), append(streams, c)
		e.has6 = e.has6 || strings.HasPrefix(l.name, "tcp6 ")
	}
	for _, l := range streams {
		e.wg.Go(func() { e.accept(l) })
	}
	for _, c := range packets {
		e.wg.Go(func() { e.serveUDP(c) })
	}
	for _, l := range links {
		e.wg.Go(func() { e.serveLink(l) })
	}
	e.wg.Go(e.proxy.serve)
	return e, nil
}

// close ends every connection and returns when nothing runs any more.
func (e *egress) close() {
	if e == nil {
		return
	}
	e.cancel()
	for _, l := range e.held {
		l.Close()
	}
	e.proxy.close()
	e.mu.Lock()
	e.closed = true
	conns := e.conns
	e.conns = nil
	e.mu.Unlock()
	for c := range conns {
		c.Close()
	}
	e.wg.Wait()
	e.proxy.transport.CloseIdleConnections()
	e.audit.close()
	for _, c := range e.owned {
		c.Close()
	}
}

// begin counts something that close waits for. It reports false when that is
// over; else wg.Done ends it.
func (e *egress) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Add(1)
	return true
}

// pause waits after a failure that may be over in a moment, as when there are
// too many descriptors. It reports false at the end.
func (e *egress) pause(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	select {
	case <-e.ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func (e *egress) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			if e.pause(err) {
				continue
			}
			return
		}
		if in := e.take(c.(*net.TCPConn)); in != nil {
			e.wg.Go(func() { e.dispatch(in) })
		}
	}
}

// An inConn is a connection from inside, which counts until it is closed.
type inConn struct {
	insideConn
	e    *egress
	once sync.Once
}

// take counts a connection. One that is too many is reset: nil.
func (e *egress) take(c *net.TCPConn) *inConn {
	if !e.slot(addrOf(c.LocalAddr())) {
		reset(c)
		return nil
	}
	return e.hold(c)
}

// slot finds room for a connection to at, or notes that there is none.
func (e *egress) slot(at netip.AddrPort) bool {
	select {
	case e.inSlots <- struct{}{}:
		return true
	default:
		e.audit.note(providers.NetworkEvent{Kind: "connect", Host: at.Addr().String(), Port: int(at.Port()),
			Reason: fmt.Sprintf("this sandbox has %d connections open; more are refused", maxInside)})
		return false
	}
}

// hold makes close end a connection that has a slot. After close it is reset: nil.
func (e *egress) hold(c insideConn) *inConn {
	in := &inConn{insideConn: c, e: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		<-e.inSlots
		reset(c)
		return nil
	}
	e.conns[in] = struct{}{}
	return in
}

// Close closes the connection, once or more.
func (c *inConn) Close() error {
	c.once.Do(func() {
		c.e.mu.Lock()
		delete(c.e.conns, c)
		c.e.mu.Unlock()
		<-c.e.inSlots
	})
	return c.insideConn.Close()
}

// refuse ends the connection so that the program inside gets an error at once.
func (c *inConn) refuse() {
	_ = c.SetLinger(0)
	c.Close()
}

func reset(c insideConn) {
	_ = c.SetLinger(0)
	c.Close()
}

func addrOf(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// dispatch tells by the address that a program connected to what it wants.
func (e *egress) dispatch(c *inConn) {
	at := addrOf(c.LocalAddr())
	switch {
	case at.Addr().IsLoopback() && at.Port() == dnsPort:
		e.serveDNS(c)
		c.Close()
	case at.Addr().IsLoopback() && at.Port() == e.proxyAt:
		e.proxy.take(c)
	default:
		e.direct(c, at)
	}
}

// direct serves a connection to an address that stands for a name, or that a
// rule names.
func (e *egress) direct(c *inConn, at netip.AddrPort) {
	t := netTarget{addr: at.Addr(), port: at.Port()}
	if name, ours := e.names.name(t.addr); ours {
		t = netTarget{name: name, port: t.port}
	}
	if at.Addr().IsLoopback() || t.name == "" && !t.addr.IsValid() {
		// A port of a rule on the loopback of the sandbox, where nobody listens;
		// or an address that stands for nothing.
		c.refuse()
		return
	}
	out, err := e.connect(e.ctx, "connect", t)
	if err != nil {
		c.refuse()
		return
	}
	e.relay(c, out, t, nil)
}

// orderNetwork decides on the network of a request.
func (p *Provider) orderNetwork(o *order) error {
	mode, rules, err := networkMode(o.Network)
	if err != nil {
		return err
	}
	o.network = mode
	if mode != netList {
		return nil
	}
	if o.Detached && !p.keepNetwork {
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message:    "a detached sandbox cannot have a list of network rules: its connections go through the program that made it",
			Suggestion: "create it attached, or through sandboxd serve, which keeps the network of its sandboxes"}
	}
	o.allow = newNetPlan(rules, o.Detached)
	return nil
}

// startEgress makes the way out of a sandbox that was just built.
func (p *Provider) startEgress(ctx context.Context, b *builder) (*egress, error) {
	if b.proc == nil || b.spec.allow == nil {
		return nil, nil
	}
	listeners := b.proc.listeners
	b.proc.listeners = nil
	e, err := p.openEgress(b.t, b.o.id, b.spec.allow, func() ([]netListener, error) {
		if b.o.engine == engineGVisor {
			ctx, cancel := context.WithTimeout(ctx, answerLimit)
			defer cancel()
			return b.e.fetchLink(ctx)
		}
		return listeners, nil
	})
	if err != nil {
		closeListeners(listeners) // again, perhaps
		return nil, &errdefs.Error{Code: "E2000", Op: "create sandbox", Message: "serve its network", Err: err}
	}
	return e, nil
}

// openEgress serves the listeners of a sandbox. errBusy: somebody does already.
func (p *Provider) openEgress(t *tree, id string, plan *netPlan, listeners func() ([]netListener, error)) (_ *egress, err error) {
	var owned []closer // what the egress has; closed here when there is none
	defer func() {
		if err != nil {
			for _, c := range owned {
				c.Close()
			}
		}
	}()
	dir, err := t.boxes.sub(id)
	if err != nil {
		return nil, err
	}
	owned = append(owned, dir.f)
	names := newNameTable(plan.rules.Names())
	if plan.keep {
		lock, err := dir.tryLock(fileNetLock)
		if err != nil {
			return nil, err
		}
		owned = append(owned, lock)
		table, file, err := keepNames(dir, plan.rules)
		if err != nil {
			return nil, err
		}
		owned, names = append(owned, file), table
	}
	audit, err := openNetAudit(dir)
	if err != nil {
		return nil, err
	}
	list, err := listeners()
	if err != nil {
		audit.close()
		return nil, err
	}
	return newEgress(plan, p.net, names, audit, p.log, list, owned)
}
