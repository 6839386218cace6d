//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

const (
	lookupTimeout = 10 * time.Second
	dialTimeout   = 10 * time.Second // of one address
	maxAddresses  = 8                // that are tried, of one name
	lookupKeep    = 5 * time.Second  // an answer is used again
	maxLookups    = 16               // at once
)

// A refusal is what a policy says no to. Its text is for whoever is inside.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// A netTarget is what a connection is to lead to: a name, or an address.
type netTarget struct {
	name string
	addr netip.Addr // when name is empty
	port uint16
}

func (t netTarget) host() string {
	if t.name != "" {
		return t.name
	}
	return t.addr.String()
}

func (t netTarget) String() string { return net.JoinHostPort(t.host(), strconv.Itoa(int(t.port))) }

func deniedEvent(kind, host string, port int, err error) providers.NetworkEvent {
	return providers.NetworkEvent{Kind: kind, Host: host, Port: port, Reason: err.Error()}
}

// missingRule says which rule would have permitted something.
func missingRule(what string) string {
	return "no network rule permits it; the rule would be " + strconv.Quote(what)
}

// ruleFor is what somebody would write to permit t.
func (t netTarget) rule() string {
	if t.port == 80 || t.port == 443 {
		return t.host()
	}
	return t.String()
}

// parseTarget reads HOST:PORT as a proxy is given it. Addresses are read in
// their usual form only; whatever else looks like a number is refused.
func (e *egress) parseTarget(host string, port uint16) (netTarget, error) {
	t := netTarget{port: port}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return t, &refusal{"an address with a zone is of one machine only"}
		}
		t.addr = a.Unmap()
		if name, ours := e.names.name(t.addr); ours {
			// The program has asked for the name itself.
			if name == "" {
				return t, &refusal{"the address " + t.addr.String() + " stands for no name"}
			}
			return netTarget{name: name, port: port}, nil
		}
		return t, nil
	}
	name, err := netrule.Name(host)
	if err != nil {
		return t, &refusal{err.Error()}
	}
	t.name = name
	return t, nil
}

// connect opens a connection to t, when a rule permits it, and notes what came
// of it. Errors are [*refusal], or of the network outside.
func (e *egress) connect(ctx context.Context, kind string, t netTarget) (*outConn, error) {
	event := providers.NetworkEvent{Kind: kind, Host: t.host(), Port: int(t.port)}
	c, rule, err := e.open(ctx, t)
	if rule != (netrule.Rule{}) {
		event.Rule = rule.String()
	}
	if err != nil {
		_, refused := errors.AsType[*refusal](err)
		event.Allowed, event.Reason = !refused, err.Error()
		e.audit.note(event)
		return nil, err
	}
	event.Allowed, event.Address = true, c.RemoteAddr().String()
	e.audit.note(event)
	return c, nil
}

func (e *egress) open(ctx context.Context, t netTarget) (*outConn, netrule.Rule, error) {
	rule, ok := netrule.Rule{}, false
	addrs := []netip.Addr{t.addr}
	if t.name == "" {
		rule, ok = e.rules.Address(t.addr, t.port)
	} else {
		rule, ok = e.rules.Name(t.name, t.port)
	}
	if !ok {
		return nil, rule, &refusal{missingRule(t.rule())}
	}
	select {
	case e.outSlots <- struct{}{}:
	default:
		return nil, rule, &refusal{fmt.Sprintf("this sandbox has %d connections open; more are refused", cap(e.outSlots))}
	}
	release := sync.OnceFunc(func() { <-e.outSlots })
	var err error
	if t.name != "" {
		if addrs, err = e.resolve(ctx, t); err != nil {
			release()
			return nil, rule, err
		}
	}
	c, err := e.dialAny(ctx, addrs, t.port)
	if err != nil {
		release()
		return nil, rule, err
	}
	return &outConn{c, release}, rule, nil
}

// outConn is a connection to the outside, which counts.
type outConn struct {
	*net.TCPConn
	release func()
}

// Close closes the connection, once or more.
func (c *outConn) Close() error {
	c.release()
	return c.TCPConn.Close()
}

// dialAny connects to the first address that answers.
func (e *egress) dialAny(ctx context.Context, addrs []netip.Addr, port uint16) (*net.TCPConn, error) {
	var errs []error
	for _, a := range addrs[:min(len(addrs), maxAddresses)] {
		d := net.Dialer{Timeout: dialTimeout}
		c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// resolve returns the addresses of a name that may be connected to. They are
// looked at here and connected to as they are, so that a second answer to the
// same question cannot lead anywhere else.
func (e *egress) resolve(ctx context.Context, t netTarget) ([]netip.Addr, error) {
	if addrs := e.settings.hosts[t.name]; len(addrs) > 0 {
		return addrs, nil
	}
	found, err := e.lookups.find(ctx, t.name)
	if err != nil {
		return nil, err
	}
	var good []netip.Addr
	var bad []string
	for _, a := range found {
		a = a.Unmap().WithZone("")
		what := netrule.Special(a)
		if _, ok := e.rules.Address(a, t.port); what != "" && !ok {
			bad = append(bad, a.String()+", which is "+what)
			continue
		}
		good = append(good, a)
	}
	switch {
	case len(good) > 0:
		return good, nil
	case len(bad) > 0:
		addr, _, _ := strings.Cut(bad[0], ",")
		return nil, &refusal{fmt.Sprintf("%s has the address %s; a rule for that address, as %q, would permit it", t.name, bad[0],
			netTarget{addr: netip.MustParseAddr(addr), port: t.port}.rule())}
	}
	return nil, errors.New(t.name + " has no address")
}

// A lookupFunc asks for the addresses of a name outside.
type lookupFunc func(ctx context.Context, name string) ([]netip.Addr, error)

// systemLookup asks as this machine is configured to, without its search list.
func systemLookup(ctx context.Context, name string) ([]netip.Addr, error) {
	r := net.Resolver{PreferGo: true} // no thread per question
	return r.LookupNetIP(ctx, "ip", name+".")
}

// lookups asks for names, each once at a time, and uses answers again for a
// moment: a sandbox must not be able to flood the name servers of its host.
type lookups struct {
	ctx   context.Context // ends the questions under way
	ask   lookupFunc
	slots chan struct{}

	mu   sync.Mutex // guards what follows
	made map[string]*lookup
}

type lookup struct {
	done  chan struct{} // closed when the rest is valid
	addrs []netip.Addr
	err   error
	until time.Time
}

func newLookups(ctx context.Context, ask lookupFunc) *lookups {
	return &lookups{ctx: ctx, ask: ask, slots: make(chan struct{}, maxLookups), made: map[string]*lookup{}}
}

func (l *lookups) find(ctx context.Context, name string) ([]netip.Addr, error) {
	l.mu.Lock()
	e := l.made[name]
	if e != nil {
		select {
		case <-e.done:
			if time.Now().After(e.until) {
				e = nil
			}
		default:
		}
	}
	mine := e == nil
	if mine {
		l.pruneLocked()
		e = &lookup{done: make(chan struct{})}
		l.made[name] = e
	}
	l.mu.Unlock()
	if !mine {
		select {
		case <-e.done:
			return e.addrs, e.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer close(e.done)
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		e.err = context.Cause(ctx)
		return nil, e.err
	}
	// Others may wait for the answer, so that it does not end with ctx.
	lctx, cancel := context.WithTimeout(l.ctx, lookupTimeout)
	defer cancel()
	e.addrs, e.err = l.ask(lctx, name)
	e.until = time.Now().Add(lookupKeep)
	return e.addrs, e.err
}

// pruneLocked forgets answers that are not used any more.
func (l *lookups) pruneLocked() {
	if len(l.made) < 64 {
		return
	}
	now, many := time.Now(), len(l.made) >= 1024
	for name, e := range l.made {
		select {
		case <-e.done:
			if many || now.After(e.until) {
				delete(l.made, name)
			}
		default:
		}
	}
}
