//go:build linux

package local

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hasOldABI = true

func init() {
	attacks["code of 32 bits"] = func(a *attacker) { enterOldCode(a.number()) }
}

// enterOldABI makes a system call of i386 through int 0x80.
func enterOldABI(nr uint32) {
	code := []byte{0xb8, 0, 0, 0, 0, // mov eax, nr
		0xcd, 0x80, // int 0x80
		0xc3, // ret
	}
	binary.LittleEndian.PutUint32(code[1:], nr)
	jump(code, 0)
}

// enterOldCode leaves for the code segment of 32 bits (selector 0x23) and makes
// the call there.
func enterOldCode(nr uint32) {
	code := []byte{
		0x6a, 0x23, // push 0x23
		0x68, 0, 0, 0, 0, // push the address of what follows
		0x48, 0xcb, // retfq
		0xb8, 0, 0, 0, 0, // mov eax, nr
		0xcd, 0x80, // int 0x80
		0xf4, // hlt: a fault, when it comes to that
	}
	binary.LittleEndian.PutUint32(code[10:], nr)
	jump(code, 3)
}

// jump runs code below 4 GiB, which holds its own address, plus nine, at patch
// unless that is zero.
func jump(code []byte, patch int) {
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_32BIT)
	if err != nil {
		return
	}
	copy(mem, code)
	entry := &mem[0]
	if patch > 0 {
		binary.LittleEndian.PutUint32(mem[patch:], uint32(uintptr(unsafe.Pointer(entry)))+9)
	}
	f := &entry
	(*(*func())(unsafe.Pointer(&f)))()
}
