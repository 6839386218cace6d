package local

import "golang.org/x/sys/unix"

func stackOf(r *unix.PtraceRegs) uintptr { return uintptr(r.Rsp) }
