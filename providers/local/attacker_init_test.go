//go:build linux

package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attacks on init that need nothing but its number: its limits, its place among
// what runs, its files in procfs, and the children that it is about to make.

func init() {
	attacks["limits of init"] = attackLimitsOfInit
	attacks["stop starts"] = attackStopStarts
	attacks["stop starts once"] = attackStopStartsOnce
}

// threadsOfInit are numbers of threads that procfs lists nowhere.
func threadsOfInit() []int {
	tids := []int{1}
	for tid := 2; tid < 200; tid++ {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
		if err == nil && strings.Contains(string(b), "\nTgid:\t1\n") {
			tids = append(tids, tid)
		}
	}
	return tids
}

func attackLimitsOfInit(a *attacker) {
	tids := threadsOfInit()
	if len(tids) < 2 {
		a.breach("the test does not find threads of init")
	}
	for _, tid := range tids {
		for _, res := range []int{unix.RLIMIT_NOFILE, unix.RLIMIT_AS, unix.RLIMIT_FSIZE, unix.RLIMIT_CPU, unix.RLIMIT_NPROC, unix.RLIMIT_STACK, unix.RLIMIT_DATA} {
			a.refused("set a limit of init", unix.Prlimit(tid, res, &unix.Rlimit{Cur: 5, Max: 5}, nil), unix.EPERM)
		}
		a.refused("lower the priority of init", unix.Setpriority(unix.PRIO_PROCESS, tid, 19), unix.EPERM)
		var param [12]int32
		a.call("make init idle", unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), 5, uintptr(unsafe.Pointer(&param)))
		a.call("set parameters of init", unix.SYS_SCHED_SETPARAM, uintptr(tid), uintptr(unsafe.Pointer(&param)))
		attr := [12]uint32{48, 5}
		a.call("make init idle", unix.SYS_SCHED_SETATTR, uintptr(tid), uintptr(unsafe.Pointer(&attr)), 0)
		a.call("set the io priority of init", unix.SYS_IOPRIO_SET, 1, uintptr(tid), 3<<13)
		_ = filepath.WalkDir("/proc/"+strconv.Itoa(tid), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && d.Type()&fs.ModeSymlink == 0 && openForWriting(path) == nil {
				a.breach("%s can be written", path)
			}
			return nil
		})
	}
	a.refused("lower the priority of a user", unix.Setpriority(unix.PRIO_USER, 0, 19), unix.EPERM)
	a.call("set the io priority of a user", unix.SYS_IOPRIO_SET, 3, uintptr(os.Getuid()), 3<<13)
	// One's own are one's own.
	if err := errors.Join(unix.Setpriority(unix.PRIO_PROCESS, 0, 1), unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 100}, nil)); err != nil {
		a.breach("own limits: %v", err)
	}
}

// attackStopStarts stops every process that has one of the next numbers, again
// and again, until it is killed.
func attackStopStarts(*attacker) {
	for {
		for pid := os.Getpid() + 1; pid < os.Getpid()+100; pid++ {
			stopProcess(pid)
		}
	}
}

// attackStopStartsOnce stops what it sees come into being once.
func attackStopStartsOnce(*attacker) {
	stopped := map[int]bool{}
	for {
		for pid := os.Getpid() + 1; pid < os.Getpid()+100; pid++ {
			if !stopped[pid] && stopProcess(pid) {
				stopped[pid] = true
			}
		}
	}
}

// stopProcess stops a process, and no thread of this one.
func stopProcess(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0) == nil
}
