//go:build linux

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What runs inside to use up more than it was given; see abuse_test.go.

func init() {
	attacks["memfd"] = abuseMemfd
	attacks["segments"] = abuseSegments
	attacks["pipes"] = abusePipes
	attacks["socket buffers"] = abuseSocketBuffers
	attacks["heap"] = abuseHeap
	attacks["threads"] = abuseThreads
	attacks["thread bomb"] = threadBomb
	attacks["zombies"] = abuseZombies
	attacks["end"] = func(*attacker) {}
	attacks["orphan"] = func(*attacker) { orphan(10 * time.Millisecond) }
	attacks["daemon"] = func(*attacker) { orphan(time.Hour) }
	attacks["daemons"] = abuseDaemons
	attacks["hostile tree"] = abuseTree
	attacks["space"] = abuseSpace
	attacks["pseudo terminals"] = abuseTerminals
	attacks["exchange"] = abuseExchange
	attacks["fork bomb"] = forkBomb
	attacks["descriptors out"] = abuseDescriptors
	attacks["spin"] = abuseSpin
	attacks["flood"] = abuseFlood
	attacks["fill"] = abuseFill
}

// The first argument of those that use memory is what is too much, in MiB.

func (a *attacker) mebibytes() int {
	n, err := strconv.Atoi(a.args[0])
	if err != nil {
		a.breach("%v", err)
	}
	return n
}

func abuseHeap(a *attacker) {
	var all [][]byte
	for range a.mebibytes() {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	a.breach("%d MiB of heap", len(all))
}

func abuseMemfd(a *attacker) {
	block := make([]byte, 1<<20)
	for i := range a.mebibytes() {
		fd, err := unix.MemfdCreate("x", 0)
		if err == nil {
			_, err = unix.Write(fd, block)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "after", i, err)
			return
		}
	}
	a.breach("files in memory are not limited")
}

func abuseSegments(a *attacker) {
	for i := range a.mebibytes() {
		id, err := unix.SysvShmGet(0, 1<<20, 0o600|unix.IPC_CREAT)
		var b []byte
		if err == nil {
			b, err = unix.SysvShmAttach(id, 0, 0)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "after", i, err)
			return
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	}
	a.breach("shared memory is not limited")
}

func abusePipes(a *attacker) {
	fillBuffers(a, "pipes", func() (p [2]int, err error) {
		err = unix.Pipe2(p[:], unix.O_NONBLOCK)
		return p, err
	})
}

func abuseSocketBuffers(a *attacker) {
	fillBuffers(a, "buffers of sockets", func() ([2]int, error) {
		return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	})
}

// fillBuffers opens pairs and writes to the second of each what nobody reads.
func fillBuffers(a *attacker, what string, open func() ([2]int, error)) {
	block := make([]byte, 64<<10)
	for i := range a.mebibytes() * 16 {
		p, err := open()
		if err == nil {
			_, err = unix.Write(p[1], block)
		}
		if err != nil && err != unix.EAGAIN {
			fmt.Fprintln(os.Stderr, "after", i, err)
			return
		}
	}
	a.breach(what + " are not limited")
}

// threadBomb makes threads until there are too many. The Go runtime does not
// survive that, so this is the process that is to die.
func threadBomb(a *attacker) {
	for range a.mebibytes() { // not of memory
		go func() {
			runtime.LockOSThread()
			var p [2]int
			if unix.Pipe(p[:]) == nil {
				_, _ = unix.Read(p[0], make([]byte, 1))
			}
			select {}
		}()
	}
	time.Sleep(20 * time.Second)
	fmt.Println("survived")
}

func abuseThreads(a *attacker) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envAttack+"=thread bomb")
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Contains(string(out), "survived") {
		a.breach("threads are not limited: %s", out)
	}
}

func forkBomb(*attacker) {
	for {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = os.Environ()
		_ = cmd.Start()
	}
}

// abuseZombies leaves children that nobody waits for.
func abuseZombies(a *attacker) {
	for range 150 {
		for _, what := range []string{"end", "orphan"} {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envAttack+"="+what)
			if err := cmd.Start(); err != nil {
				return // there are as many as there can be
			}
		}
	}
}

// orphan leaves a child in a session of its own that ignores signals.
func orphan(d time.Duration) {
	cmd := exec.Command("/bin/sh", "-c", "trap '' HUP TERM INT QUIT; sleep "+strconv.FormatFloat(d.Seconds(), 'f', 3, 64))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_ = cmd.Start()
}

// abuseDaemons leaves daemons made by double forks, and waits.
func abuseDaemons(*attacker) {
	for range 5 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envAttack+"=daemon")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = cmd.Run()
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// abuseTree makes a tree as deep, and names as long and strange, as there is
// room for.
func abuseTree(a *attacker) {
	for _, dir := range []string{"/tmp", "/home/user", "/dev/shm"} {
		if os.Chdir(dir) != nil {
			continue
		}
		name := strings.Repeat("d", 255)
		depth := 0
		for ; depth < 3000; depth++ {
			if err := os.Mkdir(name, 0o700); err != nil {
				break
			}
			_ = os.WriteFile("\n\xff"+strings.Repeat("\x01", 250), []byte("x"), 0)
			_ = os.Symlink("/proc/1/root", "link")
			if err := unix.Chdir(name); err != nil {
				a.breach("%v", err)
				return
			}
			_ = unix.Fchmodat(unix.AT_FDCWD, "..", 0, 0) // nobody may enter any more
		}
		if depth == 0 && dir != "/home/user" { // which shares its room with /tmp
			a.breach("no tree could be made in %s", dir)
		}
	}
}

// abuseSpace asks for space without writing.
func abuseSpace(a *attacker) {
	for _, dir := range []string{"/tmp", "/home/user", "/var/tmp", "/dev/shm"} {
		f, err := os.Create(filepath.Join(dir, "space"))
		if errors.Is(err, unix.EACCES) && os.Geteuid() == 0 {
			continue // it belongs to user, and root is one without capabilities
		}
		if err != nil {
			a.breach("%v", err)
			continue
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<40); err != unix.ENOSPC && err != unix.EFBIG {
			a.breach("a terabyte in %s: %v", dir, err)
		}
		if err := f.Truncate(1 << 50); err == nil {
			a.breach("a sparse file of a petabyte in %s", dir)
		}
		f.Close()
		os.Remove(f.Name())
	}
}

// abuseTerminals opens terminals, of which the whole machine has a number.
func abuseTerminals(a *attacker) {
	n := 0
	for ; n < 2000; n++ {
		if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
			break
		}
	}
	if n == 0 || n > maxTerminals {
		a.breach("%d terminals", n)
	}
}

// abuseExchange exchanges a directory and a link in every direction until it is
// killed.
func abuseExchange(a *attacker) {
	const dir, link = "/tmp/x/dir", "/tmp/x/other"
	if err := errors.Join(os.MkdirAll(dir+"/sub", 0o777), os.WriteFile(dir+"/file", []byte("own"), 0o666)); err != nil {
		a.breach("%v", err)
		return
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		_ = os.Remove(link)
		_ = os.Symlink(a.args[i%len(a.args)], link)
		for range 50 {
			_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
	}
}

func abuseDescriptors(*attacker) {
	for {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func abuseSpin(*attacker) {
	for range 8 {
		go func() {
			//lint:ignore SA5002 it is to take a processor
			for {
			}
		}()
	}
	select {}
}

func abuseFlood(*attacker) {
	block := []byte(strings.Repeat("\x00\xff flood without an end of line", 2000))
	for {
		_, _ = os.Stdout.Write(block)
	}
}

func abuseFill(*attacker) {
	block := make([]byte, 1<<20)
	for i := 0; ; i++ {
		if os.WriteFile(fmt.Sprintf("/tmp/%d", i%100), block, 0o600) != nil {
			os.Remove(fmt.Sprintf("/tmp/%d", i%7))
		}
	}
}
