//go:build !linux || !(amd64 || arm64)

package nsinit

import "syscall"

// Supported says that this package can build a sandbox on this platform.
const Supported = false

// Active reports false: there are no sandboxes here.
func Active() bool { return false }

// Config returns nil.
func Config() []byte { return nil }

// FD returns -1.
func FD(name string) int { return -1 }

// Ready returns an error.
func Ready(payload []byte) error { return syscall.ENOSYS }
