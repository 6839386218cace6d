//go:build amd64 || arm64

package nsinit

import "syscall"

// remountTree makes every mount at or below path read-only, nosuid and nodev,
// keeping what else is set on it. A mount that cannot be changed is an error:
// one that stays writable would let code write to the host.
func remountTree(path string) syscall.Errno {
	fd, err := syscall.Open("/proc/self/mountinfo", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err.(syscall.Errno)
	}
	defer syscall.Close(fd)
	var text []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := syscall.Read(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err.(syscall.Errno)
		}
		if n == 0 {
			break
		}
		text = append(text, buf[:n]...)
	}
	found := false
	for len(text) > 0 {
		line := text
		if i := index(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		point, flags, ok := mountLine(line)
		if !ok || !below(point, path) {
			continue
		}
		flags |= syscall.MS_REMOUNT | syscall.MS_BIND | syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV
		if err := syscall.Mount("", point, "", flags, ""); err != nil {
			return err.(syscall.Errno)
		}
		found = true
	}
	if !found {
		return syscall.ENOENT // the path is spelled in another way than the kernel does
	}
	return 0
}

// mountLine takes the mount point and the flags of one mount out of a line of
// /proc/self/mountinfo (proc_pid_mountinfo(5)).
func mountLine(line []byte) (point string, flags uintptr, ok bool) {
	for field := 0; len(line) > 0; field++ {
		f := line
		if i := index(line, ' '); i >= 0 {
			f, line = line[:i], line[i+1:]
		} else {
			line = nil
		}
		switch field {
		case 4:
			point = unescape(f)
		case 5:
			return point, mountFlags(f), true
		}
	}
	return "", 0, false
}

func mountFlags(opts []byte) (flags uintptr) {
	for len(opts) > 0 {
		o := opts
		if i := index(opts, ','); i >= 0 {
			o, opts = opts[:i], opts[i+1:]
		} else {
			opts = nil
		}
		switch string(o) {
		case "noexec":
			flags |= syscall.MS_NOEXEC
		case "noatime":
			flags |= syscall.MS_NOATIME
		case "nodiratime":
			flags |= syscall.MS_NODIRATIME
		case "relatime":
			flags |= syscall.MS_RELATIME
		}
	}
	return flags
}

// unescape undoes the octal escapes of mountinfo.
func unescape(b []byte) string {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) {
			out = append(out, (b[i+1]-'0')<<6|(b[i+2]-'0')<<3|(b[i+3]-'0'))
			i += 3
			continue
		}
		out = append(out, b[i])
	}
	return string(out)
}

func below(path, dir string) bool {
	return path == dir || len(path) > len(dir) && path[:len(dir)] == dir && path[len(dir)] == '/'
}

func index(b []byte, c byte) int {
	for i := range b {
		if b[i] == c {
			return i
		}
	}
	return -1
}
