//go:build linux

package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// initID names one init for other processes. A pid alone may have been given
// to somebody else since; together with the start time, the boot and the pid
// namespace it is seen from, it may not.
type initID struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat
	Boot      string `json:"boot"`
	Namespace string `json:"pid_namespace"`
}

func newInitID(pid int, startTime uint64) initID {
	boot, ns := thisKernel()
	return initID{pid, startTime, boot, ns}
}

// thisKernel identifies the boot and the pid namespace.
var thisKernel = sync.OnceValues(func() (boot, namespace string) {
	b, _ := readProc("/proc/sys/kernel/random/boot_id")
	namespace, _ = os.Readlink("/proc/self/ns/pid")
	return string(bytes.TrimSpace(b)), namespace
})

// errGone says that a process has ended.
var errGone = errors.New("process is gone")

// open returns a pidfd of exactly that process. errGone: it has ended, though
// it may not have been waited for.
func (id initID) open() (*os.File, error) {
	boot, ns := thisKernel()
	switch {
	case id.PID <= 0 || id.Boot != boot:
		return nil, errGone
	case id.Namespace != ns:
		return nil, fmt.Errorf("process %d belongs to another pid namespace", id.PID)
	}
	f, err := openPidfd(id.PID)
	if err == unix.ESRCH {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	// The descriptor pins the process that has the number now; is it ours?
	if start, err := startTime(id.PID); err != nil || start != id.StartTime {
		f.Close()
		return nil, errGone
	}
	return f, nil
}

// openPidfd returns a descriptor that becomes readable when the process, and
// in case of a pid 1 its whole namespace, has ended.
func openPidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.EINVAL { // before kernel 5.10
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// startTime reads field 22 of /proc/PID/stat. The second field holds any
// bytes the process likes, so counting starts after the last parenthesis.
func startTime(pid int) (uint64, error) {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	return parseStartTime(b)
}

func parseStartTime(stat []byte) (uint64, error) {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 {
		return 0, errors.New("stat of a process is too short")
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// waitPidfd waits until the process has ended or the deadline of the file, set
// with SetReadDeadline, has passed.
func waitPidfd(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// killPidfd kills the process, unless it has ended.
func killPidfd(f *os.File) error {
	if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

// bootTime is CLOCK_BOOTTIME in ns: it goes on while the machine is suspended
// and nobody can set it.
func bootTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail for this clock
	return ts.Nano()
}

// bootAfter is the boot time d from now, without overflow.
func bootAfter(d time.Duration) int64 {
	now := bootTime()
	if end := now + int64(d); end > now {
		return end
	}
	return 1<<63 - 1
}

// wallTime turns a boot time into the time of day, as of now.
func wallTime(boot int64) time.Time {
	return time.Now().Add(time.Duration(boot - bootTime())).Round(time.Millisecond)
}
