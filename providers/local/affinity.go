//go:build linux

package local

import (
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// affinityMask is a cpu_set_t of sched_setaffinity(2).
type affinityMask [128]byte

// chooseCPUs picks n of the processors that this process may use, from a random
// one on so that sandboxes spread over the machine. The bytes are in the order
// of a little-endian machine, which both supported architectures are.
func chooseCPUs(n int) []byte {
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return allOnes()
	}
	var cpus []int
	for cpu := range 8 * len(affinityMask{}) {
		if own.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) == 0 {
		return allOnes()
	}
	var m affinityMask
	first := rand.IntN(len(cpus))
	for i := range min(n, len(cpus)) {
		cpu := cpus[(first+i)%len(cpus)]
		m[cpu/8] |= 1 << (cpu % 8)
	}
	return m[:]
}

func allOnes() []byte {
	var m affinityMask
	for i := range m {
		m[i] = 0xff
	}
	return m[:]
}
