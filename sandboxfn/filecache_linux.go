package sandboxfn

import "syscall"

// freeBytes is how much more fits into the file system of dir.
func freeBytes(dir string) int64 {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(min(st.Bavail, 1<<40/uint64(max(st.Bsize, 1)))) * int64(st.Bsize)
}
