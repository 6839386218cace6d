//go:build linux

package local

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
)

// maxNames bounds the names of one sandbox that have an address. Only rules
// with a suffix can make it use so many.
const maxNames = 4096

var errManyNames = errors.New("this sandbox has asked for too many names")

// nameTable gives each name an address of the blocks, for the life of the
// sandbox. The names that rules hold come first, so that they have the same
// addresses whoever keeps the sandbox's network.
type nameTable struct {
	// grown is called, with the lock held, with each name that gets an address
	// later.
	grown func(name string)

	mu    sync.Mutex // guards the rest
	index map[string]int
	names []string
	asked []bool
}

// firstName is the index of the first name: addresses before it are the
// block's own and the device's.
const firstName = 2

func newNameTable(names []string) *nameTable {
	t := &nameTable{index: map[string]int{}}
	for _, n := range names {
		t.addLocked(n)
	}
	return t
}

func (t *nameTable) addLocked(name string) int {
	i := len(t.names) + firstName
	t.names, t.asked, t.index[name] = append(t.names, name), append(t.asked, false), i
	return i
}

// address returns the addresses that stand for a name; first: nobody has asked
// for it before.
func (t *nameTable) address(name string) (v4, v6 netip.Addr, first bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[name]
	if !ok {
		if len(t.names) >= maxNames {
			return v4, v6, false, errManyNames
		}
		i = t.addLocked(name)
		if t.grown != nil {
			t.grown(name)
		}
	}
	first = !t.asked[i-firstName]
	t.asked[i-firstName] = true
	return block4Address(i), block6Address(i), first, nil
}

// name is what an address stands for. It reports false for one outside of the
// blocks; an empty name is of nothing.
func (t *nameTable) name(a netip.Addr) (name string, ours bool) {
	var i uint64
	switch {
	case block4.Contains(a):
		b, base := a.As4(), block4.Addr().As4()
		i = uint64(binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(base[:]))
	case block6.Contains(a):
		b := a.As16()
		i = binary.BigEndian.Uint64(b[8:])
	default:
		return "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i < firstName || i-firstName >= uint64(len(t.names)) {
		return "", true
	}
	return t.names[i-firstName], true
}

func block4Address(i int) netip.Addr {
	b := block4.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b)
}

func block6Address(i int) netip.Addr {
	b := block6.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	return netip.AddrFrom16(b)
}
