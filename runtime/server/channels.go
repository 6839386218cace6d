//go:build linux

package server

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const (
	channelProtocol = "sandbox-frames/1"
	channelWait     = 30 * time.Second // a parked connection waits so long for its process
	maxChannels     = 256              // parked at the same time
)

// channels holds connections that wait to be given to a process. The process
// then talks to the client without us in between.
type channels struct {
	mu     sync.Mutex
	parked map[string]*parked // guarded by mu
	closed bool               // guarded by mu
}

// parked is one connection, from the moment its id is taken.
type parked struct {
	ready chan struct{} // closed once the upgrade is answered; conn may be read then
	conn  net.Conn      // nil when the upgrade failed
	timer *time.Timer   // guarded by the mutex of channels
}

func newChannels() *channels { return &channels{parked: map[string]*parked{}} }

// park takes over the connection of a request that asks to upgrade it and keeps
// it under the id of its path.
func (c *channels) park(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	switch {
	case !validChannelID(id):
		fault.HTTP(w, http.StatusBadRequest, "E3011", "channel id is not 32 lower-case hex digits")
		return
	case !wantsUpgrade(r.Header, channelProtocol):
		refuseWithoutUpgrade(w, channelProtocol)
		return
	case r.ContentLength != 0:
		fault.HTTP(w, http.StatusBadRequest, "E3006", "a channel request has no body")
		return
	}
	slot, status, why := c.reserve(id)
	if slot == nil {
		fault.HTTP(w, status, "E3006", why)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.fill(id, slot, nil)
		fault.HTTP(w, http.StatusInternalServerError, "E3006", "connection cannot be upgraded")
		return
	}
	conn = plainConn(conn)
	if !accept(conn, rw.Reader) {
		conn.Close()
		conn = nil
	}
	c.fill(id, slot, conn)
}

// validChannelID accepts 32 lower-case hex digits.
func validChannelID(id string) bool {
	if len(id) != 32 {
		return false
	}
	return strings.Trim(id, "0123456789abcdef") == ""
}

// accept answers the upgrade. A client that sent frames before it read the
// answer is refused: they are in our buffer, where the process cannot read them.
func accept(conn net.Conn, r *bufio.Reader) bool {
	if r.Buffered() > 0 {
		return false
	}
	return answerUpgrade(conn, channelProtocol) == nil
}

// reserve takes the id for a connection that is being upgraded: the client may
// start its process as soon as it has read the answer. Without a slot, status
// and why say what is in the way.
func (c *channels) reserve(id string) (slot *parked, status int, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, taken := c.parked[id]
	switch {
	case c.closed:
		return nil, http.StatusServiceUnavailable, "server is shutting down"
	case taken:
		return nil, http.StatusConflict, "channel id is in use"
	case len(c.parked) >= maxChannels:
		return nil, http.StatusTooManyRequests, "too many channels wait for a process"
	}
	slot = &parked{ready: make(chan struct{})}
	c.parked[id] = slot
	return slot, 0, ""
}

// fill completes a slot; a nil conn gives it up.
func (c *channels) fill(id string, slot *parked, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slot.conn = conn
	close(slot.ready)
	switch {
	case c.parked[id] != slot:
		// Taken in the meantime, or we are closed.
		if c.closed && conn != nil {
			conn.Close()
		}
	case conn == nil:
		delete(c.parked, id)
	default:
		slot.timer = time.AfterFunc(channelWait, func() { c.expire(id, slot) })
	}
}

func (c *channels) expire(id string, slot *parked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked[id] == slot {
		delete(c.parked, id)
		slot.conn.Close()
	}
}

// take returns the connection parked under id as a file of its own and forgets
// it.
func (c *channels) take(id string) (*os.File, bool) {
	c.mu.Lock()
	slot := c.parked[id]
	delete(c.parked, id)
	if slot != nil && slot.timer != nil {
		slot.timer.Stop()
	}
	c.mu.Unlock()
	if slot == nil {
		return nil, false
	}
	<-slot.ready // soon: the answer has a deadline
	if slot.conn == nil {
		return nil, false
	}
	defer slot.conn.Close()
	f, ok := slot.conn.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, false
	}
	file, err := f.File()
	return file, err == nil
}

// close ends all parked connections and refuses new ones.
func (c *channels) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for id, slot := range c.parked {
		delete(c.parked, id)
		if slot.timer != nil {
			slot.timer.Stop()
			slot.conn.Close()
		}
	}
}
