//go:build linux

package local

// mapKind says how ids inside belong to ids of the host.
type mapKind string

const (
	mapBlock  mapKind = "block"  // root: 0..65535 to a leased block
	mapSubid  mapKind = "subid"  // a user with newuidmap: 0 and the rest from the sub-ids, 1000 to the caller
	mapSingle mapKind = "single" // a user without: 1000 to the caller, nothing else
)

// The block of ids that root's sandboxes are mapped to. Host ids from here on
// are above what distributions give to people, services and sub-ids.
const (
	blockBase  = 0x70000000
	blockSize  = 65536
	blockCount = 4096
)

// userID is the user and group that commands run as inside when nothing else
// is asked for.
const userID = 1000

// idMapping is a choice of mapping for one sandbox. block counts from zero and
// matters for mapBlock only: its holder leases it.
type idMapping struct {
	kind  mapKind
	block int
}

// mappingKind is the mapping that this process can make.
func mappingKind() mapKind { return mapSingle }
