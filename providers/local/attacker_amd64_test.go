//go:build linux

package local

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hasOldABI = true

// enterOldABI makes a system call of i386 through int 0x80.
func enterOldABI() {
	code := []byte{
		0xb8, 0x14, 0, 0, 0, // mov eax, 20: getpid of i386
		0xcd, 0x80, // int 0x80
		0xc3, // ret
	}
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return
	}
	copy(mem, code)
	entry := &mem[0]
	f := &entry
	(*(*func())(unsafe.Pointer(&f)))()
}
