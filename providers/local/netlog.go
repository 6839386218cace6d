//go:build linux

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Files of the log of a sandbox's network: one JSON object per line. The older
// half is moved out of the way and replaced.
const (
	fileNetLog    = "net.log"
	fileNetLogOld = "net.log.1"

	netLogHalf = 512 << 10 // bytes
)

// What is noted: a burst, and then so many in a second. What is left out is
// counted.
const (
	netLogBurst = 256
	netLogRate  = 32
)

// netAudit notes what a policy decided. A hostile sandbox can fill the log, and
// nothing else: neither disk nor memory.
type netAudit struct {
	dir *folder
	now func() time.Time

	mu      sync.Mutex // guards the rest
	f       *os.File   // nil after close, or when it cannot be written
	size    int64
	tokens  float64
	last    time.Time
	dropped int
}

func openNetAudit(dir *folder) (*netAudit, error) {
	f, err := dir.open(fileNetLog, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &netAudit{dir: dir, now: time.Now, f: f, size: st.Size(), tokens: netLogBurst}, nil
}

// note writes an event, unless there were too many.
func (a *netAudit) note(e providers.NetworkEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.At = a.now().Round(0)
	if !a.last.IsZero() {
		a.tokens = min(netLogBurst, a.tokens+e.At.Sub(a.last).Seconds()*netLogRate)
	}
	a.last = e.At
	if a.tokens < 1 {
		a.dropped++
		return
	}
	a.tokens--
	a.flushLocked(e.At)
	a.writeLocked(e)
}

// flushLocked notes that events are missing.
func (a *netAudit) flushLocked(at time.Time) {
	if a.dropped == 0 {
		return
	}
	a.writeLocked(providers.NetworkEvent{At: at, Kind: "dropped", Reason: fmt.Sprintf("%d events came too fast and are not in this log", a.dropped)})
	a.dropped = 0
}

func (a *netAudit) writeLocked(e providers.NetworkEvent) {
	e.Host, e.Reason = clipTo(e.Host, 255), clipTo(e.Reason, 512)
	line, err := json.Marshal(e)
	if err != nil || a.f == nil {
		return
	}
	if a.size+int64(len(line)) > netLogHalf && !a.turnLocked() {
		return
	}
	n, _ := a.f.Write(append(line, '\n')) // a full disk: what decides goes on
	a.size += int64(n)
}

// turnLocked begins a new half.
func (a *netAudit) turnLocked() bool {
	a.f.Close()
	a.f = nil
	if err := unix.Renameat(a.dir.fd(), fileNetLog, a.dir.fd(), fileNetLogOld); err != nil {
		return false
	}
	f, err := a.dir.open(fileNetLog, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600)
	if err != nil {
		return false
	}
	a.f, a.size = f, 0
	return true
}

func (a *netAudit) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f != nil {
		a.flushLocked(a.now().Round(0))
		a.f.Close()
		a.f = nil
	}
}

func clipTo(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// NetworkLog returns what the network policy of a sandbox allowed and refused,
// oldest first. About the last thousands of events are kept, while the sandbox
// lives; an event of kind "dropped" stands for those that came faster than they
// were noted. A sandbox without a list has none.
func (p *Provider) NetworkLog(ctx context.Context, id string) ([]providers.NetworkEvent, error) {
	const op = "read network log"
	_, e, done, err := p.enter(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer done()
	var out []providers.NetworkEvent
	for _, name := range []string{fileNetLogOld, fileNetLog} {
		b, err := e.dir.read(name, 2*netLogHalf)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errdefs.Wrap("E8000", op, "the log of sandbox "+id, err)
		}
		for line := range bytes.Lines(b) {
			var ev providers.NetworkEvent
			if json.Unmarshal(line, &ev) == nil { // a line that is being written ends the log
				out = append(out, ev)
			}
		}
	}
	return out, nil
}
