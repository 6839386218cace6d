//go:build linux

package process

import (
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// marker gives each command a number that its whole tree carries, however
// often it forks, execs or leaves its session: an otherwise unused soft limit,
// RLIMIT_RTTIME (it counts only for real-time scheduling), set to a value far
// above any real one. Process group, session and parent do not survive a
// daemon's double fork; an environment variable would show up in every program;
// control groups are not there on every machine.
type marker struct {
	mu   sync.Mutex // starts are one at a time: the limit is that of the whole process
	base uint64
	next uint64
}

const (
	markFlag     = 1 << 62 // what makes a value a mark; no limit of a real program is near
	markSerial   = 1 << 32 // marks of one service
	markBaseBits = 1<<29 - 1
)

func newMarker() *marker {
	return &marker{base: markFlag | rand.Uint64()&markBaseBits<<32}
}

// owns reports whether mark was given by this marker.
func (m *marker) owns(mark uint64) bool {
	return mark&^(markSerial-1) == m.base
}

// with runs start so that the process it starts is marked. A mark of 0 means
// that the limit could not be set.
func (m *marker) with(start func() error) (mark uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var old unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &old) != nil || old.Max != unix.RLIM_INFINITY {
		return 0, start()
	}
	m.next = (m.next + 1) % markSerial
	mark = m.base | m.next
	if unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: old.Max}, nil) != nil {
		return 0, start()
	}
	err = start()
	if e := unix.Prlimit(0, unix.RLIMIT_RTTIME, &old, nil); e != nil && err == nil {
		// Raising a soft limit to what it was is always allowed.
		panic(e)
	}
	return mark, err
}

// markOf is the mark of a process; 0 when it has none.
func markOf(pid int) uint64 {
	var l unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &l) != nil {
		return markFromProc(pid)
	}
	return asMark(l.Cur)
}

func asMark(v uint64) uint64 {
	if v == unix.RLIM_INFINITY || v&markFlag == 0 {
		return 0
	}
	return v
}
