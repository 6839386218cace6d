//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file runs inside the sandbox: the test program is started there, as the
// worker of a hostile client would be, and tries to get out. An attack reports
// each thing that it could do and should not; see attack_test.go.

const (
	envAttack = "LOCAL_TEST_ATTACK"
	envArgs   = "LOCAL_TEST_ARGS" // of the attack, separated by newlines

	// envGuest says that the kernel is gVisor's. What it answers differently is
	// said at each attack that asks.
	envGuest = "LOCAL_TEST_GVISOR"
)

func init() {
	roles["attack"] = func() error {
		a := &attacker{args: strings.Split(os.Getenv(envArgs), "\n")}
		f, ok := attacks[os.Getenv(envAttack)]
		if !ok {
			return fmt.Errorf("no attack %q", os.Getenv(envAttack))
		}
		f(a)
		if a.failed {
			os.Exit(1)
		}
		return nil
	}
}

func inGuest() bool { return os.Getenv(envGuest) != "" }

type attacker struct {
	args   []string
	failed bool
}

// breach reports something that should not be possible.
func (a *attacker) breach(format string, args ...any) {
	a.failed = true
	fmt.Printf("BREACH: "+format+"\n", args...)
}

// refused checks that err is one of want; without want, that there is an error.
func (a *attacker) refused(what string, err error, want ...error) {
	if err == nil {
		a.breach("%s succeeded", what)
		return
	}
	if len(want) > 0 && !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		a.breach("%s: %v, want %v", what, err, want)
	}
}

// call makes a system call that must be refused.
func (a *attacker) call(what string, nr uintptr, args ...uintptr) {
	if e := rawSyscall(nr, args...); e == 0 {
		a.breach("%s succeeded", what)
	} else if e != unix.EPERM && e != unix.ENOSYS {
		a.breach("%s: %v, want EPERM", what, e)
	}
}

func rawSyscall(nr uintptr, args ...uintptr) syscall.Errno {
	var v [6]uintptr
	copy(v[:], args)
	_, _, e := unix.Syscall6(nr, v[0], v[1], v[2], v[3], v[4], v[5])
	return e
}

func ptr(s string) uintptr {
	b, _ := unix.BytePtrFromString(s)
	pinned = append(pinned, b)
	return uintptr(unsafe.Pointer(b))
}

var pinned []*byte

var attacks = map[string]func(*attacker){
	"privileges":  attackPrivileges,
	"canaries":    attackCanaries,
	"environment": attackEnvironment,
	"magic links": attackMagicLinks,
	"descriptors": attackDescriptors,
	"executables": attackExecutables,
	"markers":     attackMarkers,
	"mounts":      attackMounts,
	"namespaces":  attackNamespaces,
	"cgroups":     attackCgroups,
	"settings":    attackSettings,
	"devices":     attackDevices,
	"handles":     attackHandles,
	"processes":   attackProcesses,
	"keyrings":    attackKeyrings,
	"ipc":         attackIPC,
	"sockets":     attackSockets,
	"network":     attackNetwork,
	"calls":       attackCalls,
	"entries":     attackEntries,
	"families":    attackFamilies,
	"terminals":   attackTerminals,
	"set-uid":     attackSetUID,
	"machine":     attackMachine,
	"signals":     attackSignals,
	"disk":        attackDisk,
	"int80":       func(a *attacker) { enterOldABI(a.number()) },
	"x32":         func(a *attacker) { rawSyscall(0x40000000 | uintptr(a.number())) },
	"id":          func(a *attacker) { fmt.Println(os.Geteuid(), os.Getegid()) },
}

func attackPrivileges(a *attacker) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		a.breach("status: %v", err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		status[k] = strings.TrimSpace(v)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if status[set] != "0000000000000000" {
			a.breach("%s is %s", set, status[set])
		}
	}
	if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
		a.breach("no_new_privs %s, seccomp %s", status["NoNewPrivs"], status["Seccomp"])
	}
	if dump, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dump != 1 {
		a.breach("a command is not dumpable: %d", dump)
	}
	// The namespace of a guest is the first one of its kernel.
	if m, _ := os.ReadFile("/proc/self/uid_map"); !inGuest() && bytes.Contains(m, []byte(" 0 ")) && strings.Fields(string(m))[1] == "0" {
		a.breach("an id is mapped to root outside: %s", m)
	}
	if cwd, err := os.Getwd(); err != nil || strings.HasPrefix(cwd, "(") {
		a.breach("working directory %q, %v", cwd, err)
	}
	for _, res := range []int{unix.RLIMIT_CORE, unix.RLIMIT_RTPRIO, unix.RLIMIT_NICE} {
		var l unix.Rlimit
		if unix.Getrlimit(res, &l); l.Max != 0 {
			a.breach("resource limit %d is %d", res, l.Max)
		}
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l); l.Max > 65536 {
		a.breach("%d descriptors", l.Max)
	}
}

func attackCanaries(a *attacker) {
	for _, path := range append(a.args,
		"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/docker", "/etc/kubernetes", "/etc/ssl/private",
		"/run/secrets", "/var/run/secrets", "/run/user", "/var/lib", "/var/log", "/var/run/docker.sock", "/boot", "/mnt", "/media", "/srv",
		"/root/.ssh", "/root/.aws", "/root/.docker", "/home/user/.ssh", "/sys/class", "/sys/kernel", "/.dockerenv", "/proc/1/root/etc/shadow",
	) {
		if _, err := os.Lstat(path); err == nil {
			a.breach("%s is there", path)
		}
	}
	for dir, want := range map[string][]string{"/home": {"user"}, "/root": nil, "/tmp": nil, "/var/tmp": nil, "/home/user": nil} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !slices.Contains(want, e.Name()) {
				a.breach("%s holds %s", dir, e.Name())
			}
		}
	}
}

func attackEnvironment(a *attacker) {
	for _, secret := range a.args {
		for _, pattern := range []string{"/proc/*/environ", "/proc/*/cmdline", "/proc/*/task/*/environ", "/proc/*/comm"} {
			paths, _ := filepath.Glob(pattern)
			for _, p := range paths {
				if strings.Contains(p, strconv.Itoa(os.Getpid())) || strings.Contains(p, "self") {
					continue // what the test tells the attacker to look for
				}
				if b, _ := os.ReadFile(p); bytes.Contains(b, []byte(secret)) {
					a.breach("%s holds %s", p, secret)
				}
			}
		}
	}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if k != envArgs && slices.ContainsFunc(a.args, func(s string) bool { return strings.Contains(v, s) }) {
			a.breach("the environment holds %s", kv)
		}
		if strings.HasPrefix(k, "SANDBOX_") && k != "SANDBOX_ID" {
			a.breach("the environment holds %s", k)
		}
	}
	if _, err := os.ReadFile("/proc/1/environ"); err == nil {
		a.breach("the environment of init can be read")
	}
}

func attackMagicLinks(a *attacker) {
	for _, pattern := range []string{"/proc/*/root", "/proc/*/cwd", "/proc/*/fd/*", "/proc/*/task/*/root", "/proc/*/task/*/fd/*"} {
		links, _ := filepath.Glob(pattern)
		for _, link := range links {
			for _, up := range []string{"", "/..", "/../../../../.."} {
				if _, err := os.Stat(link + up + "/etc/shadow"); err == nil {
					a.breach("%s%s leads outside", link, up)
				}
			}
		}
	}
	for _, name := range []string{"exe", "root", "cwd", "fd", "maps", "mem", "environ", "stack", "syscall", "ns/mnt", "ns/user"} {
		if inGuest() && strings.HasPrefix(name, "ns/") {
			continue // a number; nobody may enter it
		}
		p := "/proc/1/" + name
		if _, err := os.Readlink(p); err == nil {
			a.breach("%s can be read", p)
		} else if f, err := os.Open(p); err == nil {
			if _, err := f.Read(make([]byte, 1)); err == nil {
				a.breach("%s can be read", p)
			}
			f.Close()
		}
	}
}

func attackDescriptors(a *attacker) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, l := range links {
		target, err := os.Readlink(l)
		if err != nil {
			continue
		}
		for _, secret := range a.args {
			if strings.Contains(target, secret) {
				a.breach("%s is %s", l, target)
			}
		}
	}
	// Nothing but the standard streams and what this program opens itself.
	own, _ := os.ReadDir("/proc/self/fd")
	for _, e := range own {
		n, _ := strconv.Atoi(e.Name())
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if os.Getenv("LOCAL_TEST_FUNCTION") != "" && (n == 3 || n == 4) {
			continue // the channel of its caller
		}
		if n > 2 && err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") {
			a.breach("descriptor %d is %s", n, target)
		}
	}
}

func attackExecutables(a *attacker) {
	targets := append([]string{"/proc/1/exe", "/proc/self/exe"}, a.args...)
	for _, p := range targets {
		for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND} {
			if f, err := os.OpenFile(p, flags, 0); err == nil {
				a.breach("%s can be opened for writing", p)
				f.Close()
			}
		}
		a.refused("chmod "+p, os.Chmod(p, 0o777))
		a.refused("truncate "+p, os.Truncate(p, 0))
		a.refused("chown "+p, os.Chown(p, os.Getuid(), os.Getgid()))
		a.refused("remove "+p, os.Remove(p))
	}
	for _, dir := range []string{"/run/sandbox", "/run/sandbox/bin"} {
		a.refused("rename "+dir, os.Rename(dir, dir+"2"))
		a.refused("create in "+dir, os.WriteFile(dir+"/x", nil, 0o666))
	}
}

func attackMarkers(a *attacker) {
	for _, dir := range append(a.args, "/", "/etc", "/etc/ssl/certs", "/etc/alternatives", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/usr/lib",
		"/bin", "/lib", "/sys", "/dev", "/dev/pts", "/proc", "/home", "/var", "/run/sandbox", "/usr/src", "/usr/share") {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		name := filepath.Join(dir, "sandbox-marker")
		if err := os.WriteFile(name, []byte("x"), 0o666); err == nil {
			a.breach("wrote %s", name)
		}
		if err := os.Mkdir(name, 0o777); err == nil {
			a.breach("made %s", name)
		}
		if err := os.Symlink("/", name); err == nil {
			a.breach("linked %s", name)
		}
		if err := os.Chmod(dir, 0o777); err == nil && os.Geteuid() != 0 && os.Getenv("LOCAL_TEST_SINGLE") == "" {
			a.breach("changed the mode of %s", dir)
		}
	}
	for _, f := range []string{"/etc/passwd", "/etc/hosts", "/etc/ld.so.cache", "/usr/bin/env"} {
		if _, err := os.Stat(f); err != nil {
			continue
		}
		a.refused("open "+f, openForWriting(f))
		a.refused("change the times of "+f, os.Chtimes(f, time.Unix(0, 0), time.Unix(0, 0)))
	}
	// What is shared with the host is a mount that nobody can write through.
	readOnly := []string{"/", "/dev", "/run/sandbox", "/proc/sys", "/proc/1", "/proc/bus"}
	for _, m := range ownMounts() {
		if slices.Contains(readOnly, m.point) && !slices.Contains(m.options, "ro") {
			a.breach("%s is writable", m.point)
		}
		if m.fstype != "tmpfs" && m.fstype != "proc" && m.fstype != "devpts" && !slices.Contains(m.options, "ro") {
			a.breach("%s (%s) is writable", m.point, m.fstype)
		}
		if !slices.Contains(m.options, "nosuid") {
			a.breach("%s honours set-uid bits", m.point)
		}
	}
}

func openForWriting(p string) error {
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	if err == nil {
		f.Close()
	}
	return err
}

type mountPoint struct {
	point, fstype string
	options       []string
}

func ownMounts() []mountPoint {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var out []mountPoint
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		i := slices.Index(f, "-")
		out = append(out, mountPoint{f[4], f[i+1], strings.Split(f[5], ",")})
	}
	return out
}

func attackMounts(a *attacker) {
	mount := func(what, source, target, fstype string, flags uintptr) {
		a.refused(what, unix.Mount(source, target, fstype, flags, ""), unix.EPERM)
	}
	mount("remount /usr read-write", "", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND)
	mount("remount / read-write", "", "/", "", unix.MS_REMOUNT|unix.MS_BIND)
	mount("remount /proc/sys", "", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND)
	mount("bind /", "/", "/tmp", "", unix.MS_BIND)
	mount("move /proc/sys", "/proc/sys", "/tmp", "", unix.MS_MOVE)
	mount("mount proc", "proc", "/tmp", "proc", 0)
	mount("mount sysfs", "sysfs", "/tmp", "sysfs", 0)
	mount("mount tmpfs", "x", "/tmp", "tmpfs", 0)
	mount("mount overlay", "x", "/tmp", "overlay", 0)
	for _, m := range ownMounts() {
		a.refused("umount "+m.point, unix.Unmount(m.point, unix.MNT_DETACH), unix.EPERM)
	}
	a.call("pivot_root", unix.SYS_PIVOT_ROOT, ptr("/tmp"), ptr("/tmp"))
	a.call("chroot", unix.SYS_CHROOT, ptr("/tmp"))
	a.call("open_tree", unix.SYS_OPEN_TREE, ^uintptr(99), ptr("/usr"), unix.OPEN_TREE_CLONE)
	a.call("move_mount", unix.SYS_MOVE_MOUNT, 0, ptr(""), 0, ptr("/tmp"), 4)
	a.call("fsopen", unix.SYS_FSOPEN, ptr("tmpfs"), 0)
	a.call("fsmount", unix.SYS_FSMOUNT, 0, 0, 0)
	a.call("fspick", unix.SYS_FSPICK, 0, ptr("/"), 0)
	a.call("mount_setattr", unix.SYS_MOUNT_SETATTR, 0, ptr("/usr"), 0, ptr("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), 32)
}

func attackNamespaces(a *attacker) {
	for name, flag := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "network": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	} {
		a.call("unshare "+name, unix.SYS_UNSHARE, flag)
		if name == "time" {
			continue // the bit means something else to clone(2)
		}
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
		a.refused("clone "+name, cmd.Run(), unix.EPERM)
	}
	args := make([]byte, 88)
	if e := rawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args[0])), 88); e != unix.ENOSYS {
		a.breach("clone3: %v", e)
	}
	for _, ns := range []string{"user", "mnt", "pid", "net"} {
		if fd, err := unix.Open("/proc/self/ns/"+ns, unix.O_RDONLY, 0); err == nil {
			a.call("setns "+ns, unix.SYS_SETNS, uintptr(fd), 0)
			unix.Close(fd)
		}
	}
	if inGuest() {
		return // its kernel has no such limits, and needs none: it is charged by itself
	}
	if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(b)) != "0" {
		a.breach("max_user_namespaces is %s, %v", b, err)
	}
	// What is charged to the user outside as well.
	instances := 0
	for ; instances < 100; instances++ {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break
		}
		defer unix.Close(fd)
	}
	if instances > 16 {
		a.breach("%d instances of inotify", instances)
	}
}

func attackCgroups(a *attacker) {
	for _, fstype := range []string{"cgroup", "cgroup2"} {
		a.refused("mount "+fstype, unix.Mount("x", "/tmp", fstype, 0, ""), unix.EPERM)
	}
	for _, p := range []string{"/sys/fs/cgroup", "/sys/fs"} {
		if _, err := os.Lstat(p); err == nil {
			a.breach("%s is there", p)
		}
	}
	for _, m := range ownMounts() {
		if strings.HasPrefix(m.fstype, "cgroup") {
			a.breach("%s is mounted at %s", m.fstype, m.point)
		}
	}
	b, _ := os.ReadFile("/proc/1/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[2] != "/" && !strings.HasPrefix(f[2], "/..") {
			a.breach("the path of a control group is visible: %s", line)
		}
	}
}

func attackSettings(a *attacker) {
	for _, root := range []string{"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/asound", "/sys"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && openForWriting(path) == nil {
				a.breach("%s is writable", path)
			}
			return nil
		})
	}
	for _, p := range []string{"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/drop_caches", "/proc/mtrr"} {
		if openForWriting(p) == nil {
			a.breach("%s is writable", p)
		}
	}
	for _, name := range []string{"kcore", "kmsg", "keys", "key-users", "timer_list", "kallsyms", "slabinfo", "vmallocinfo", "config.gz", "interrupts", "pagetypeinfo"} {
		if b, _ := os.ReadFile("/proc/" + name); len(b) > 0 {
			a.breach("/proc/%s says something", name)
		}
	}
}

func attackDevices(a *attacker) {
	for name, dev := range map[string]uint64{"disk": unix.Mkdev(254, 0), "sda": unix.Mkdev(8, 0), "mem": unix.Mkdev(1, 1), "kmsg": unix.Mkdev(1, 11)} {
		for _, dir := range []string{"/tmp", "/home/user", "/dev", "/dev/shm"} {
			p := filepath.Join(dir, "node-"+name)
			a.refused("mknod "+p, unix.Mknod(p, unix.S_IFBLK|0o666, int(dev)))
			a.refused("mknod "+p, unix.Mknod(p, unix.S_IFCHR|0o666, int(dev)))
		}
	}
	want := []string{"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
	entries, err := os.ReadDir("/dev")
	if err != nil {
		a.breach("/dev: %v", err)
	}
	for _, e := range entries {
		if !slices.Contains(want, e.Name()) {
			a.breach("/dev/%s is there", e.Name())
		}
	}
	if len(entries) != len(want) {
		a.breach("/dev holds %d names", len(entries))
	}
	// The nodes work.
	b := make([]byte, 8)
	for _, name := range []string{"zero", "random", "urandom"} {
		if f, err := os.Open("/dev/" + name); err != nil {
			a.breach("%v", err)
		} else if _, err := f.Read(b); err != nil {
			a.breach("%v", err)
		}
	}
	if err := os.WriteFile("/dev/null", b, 0o666); err != nil {
		a.breach("%v", err)
	}
	if err := os.WriteFile("/dev/full", b, 0o666); !errors.Is(err, unix.ENOSPC) {
		a.breach("/dev/full: %v", err)
	}
}

func attackHandles(a *attacker) {
	handle := make([]byte, 16)
	handle[0] = 8
	handle[8] = 2 // the root inode of ext4
	a.call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), uintptr(unsafe.Pointer(&handle[0])), 0)
	a.call("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, ^uintptr(99), ptr("/usr"), uintptr(unsafe.Pointer(&handle[0])), uintptr(unsafe.Pointer(&handle[0])), 0)
}

func attackProcesses(a *attacker) {
	for _, arg := range a.args {
		pid, _ := strconv.Atoi(arg)
		if pid <= 0 || pid == os.Getpid() {
			continue
		}
		if _, err := os.Stat("/proc/" + arg); err == nil {
			continue // the number is in use inside as well
		}
		a.refused("signal a process of the host", unix.Kill(pid, 0), unix.ESRCH)
		a.call("ptrace", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid), 0, 0)
	}
	for _, pid := range []int{1, os.Getppid()} {
		a.call("ptrace attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid), 0, 0)
		a.call("ptrace seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0)
		var iov [2]uintptr
		a.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&iov)), 1, uintptr(unsafe.Pointer(&iov)), 1, 0)
		a.call("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, uintptr(pid), uintptr(unsafe.Pointer(&iov)), 1, uintptr(unsafe.Pointer(&iov)), 1, 0)
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			for n := range 16 {
				a.call("pidfd_getfd", unix.SYS_PIDFD_GETFD, uintptr(fd), uintptr(n), 0)
			}
			unix.Close(fd)
		}
	}
	a.call("kcmp", unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 0, 0)
	for _, name := range []string{"mem", "pagemap", "clear_refs"} {
		if f, err := os.OpenFile("/proc/1/"+name, os.O_RDWR, 0); err == nil {
			a.breach("/proc/1/%s can be opened", name)
			f.Close()
		}
	}
	_ = filepath.WalkDir("/proc/1", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Type()&fs.ModeSymlink == 0 && openForWriting(path) == nil {
			a.breach("%s can be written", path)
		}
		return nil
	})
	// The threads of init have names of their own that no directory lists.
	for tid := 2; tid < 20; tid++ {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
		if err != nil || !strings.Contains(string(status), "\nTgid:\t1\n") {
			continue
		}
		if openForWriting("/proc/"+strconv.Itoa(tid)+"/oom_score_adj") == nil {
			a.breach("oom_score_adj of thread %d of init can be written", tid)
		}
	}
	// One's own children only: what is visible is what runs in the sandbox.
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, n := range names {
		b, _ := os.ReadFile(n + "/comm")
		if c := strings.TrimSpace(string(b)); n == "/proc/1" && c != "sandbox-init" {
			a.breach("pid 1 calls itself %q", c)
		}
	}
	if len(names) > 20 {
		a.breach("%d processes are visible", len(names))
	}
}

func attackKeyrings(a *attacker) {
	a.call("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 0)
	a.call("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0)
	a.call("add_key", unix.SYS_ADD_KEY, ptr("user"), ptr("x"), ptr("y"), 1, ^uintptr(2))
	a.call("request_key", unix.SYS_REQUEST_KEY, ptr("user"), ptr(a.args[0]), 0, ^uintptr(2))
	for _, name := range []string{"/proc/keys", "/proc/key-users"} {
		if b, _ := os.ReadFile(name); len(b) > 0 {
			a.breach("%s says %s", name, b)
		}
	}
}

func attackIPC(a *attacker) {
	key, _ := strconv.Atoi(a.args[0])
	a.refused("find a shared memory segment of the host", rawErr(unix.SYS_SHMGET, uintptr(key), 0, 0), unix.ENOENT)
	a.refused("find a message queue of the host", rawErr(unix.SYS_MQ_OPEN, ptr(a.args[1]), unix.O_RDONLY, 0, 0), unix.ENOENT)
	if _, err := os.Stat("/dev/shm/" + a.args[2]); err == nil {
		a.breach("a file of /dev/shm of the host is there")
	}
}

func rawErr(nr uintptr, args ...uintptr) error {
	if e := rawSyscall(nr, args...); e != 0 {
		return e
	}
	return nil
}

func attackSockets(a *attacker) {
	for _, name := range a.args { // abstract names and paths of the host
		c, err := net.DialTimeout("unix", name, time.Second)
		if err == nil {
			a.breach("%s answers", name)
			c.Close()
		}
	}
	for _, path := range []string{"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/0/bus", "/tmp/.X11-unix/X0"} {
		if _, err := os.Lstat(path); err == nil {
			a.breach("%s is there", path)
		}
	}
	b, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[7], "@") {
			a.breach("an abstract socket is visible: %s", f[7])
		}
	}
}

func attackNetwork(a *attacker) {
	for _, addr := range append(a.args, "169.254.169.254:80", "100.100.100.200:80", "1.1.1.1:443", "[fd00:ec2::254]:80", "[2606:4700:4700::1111]:443", "10.0.0.1:80", "192.168.1.1:80") {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			a.breach("%s answers", addr)
			c.Close()
		} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			a.breach("%s is not refused at once", addr)
		}
	}
	for _, addr := range []string{"1.1.1.1:53", "8.8.8.8:53"} {
		c, err := net.Dial("udp", addr)
		if err == nil {
			if _, err = c.Write([]byte("x")); err == nil {
				a.breach("sent a datagram to %s", addr)
			}
			c.Close()
		}
	}
	for what, args := range map[string][3]int{
		"raw":    {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"raw6":   {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		"packet": {unix.AF_PACKET, unix.SOCK_RAW, 0},
	} {
		fd, err := unix.Socket(args[0], args[1], args[2])
		if err == nil {
			a.breach("a %s socket can be made", what)
			unix.Close(fd)
		}
	}
	ifaces, _ := net.Interfaces()
	for _, i := range ifaces {
		if i.Name != "lo" && i.Flags&net.FlagUp != 0 {
			a.breach("interface %s is up", i.Name)
		}
	}
	// The loopback device is what the mode says, and nobody can change it.
	loop := os.Getenv("LOCAL_TEST_NETWORK") != netNone
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", l.Addr().String(), time.Second); err == nil {
			c.Close()
		}
		l.Close()
	}
	if (err == nil) != loop {
		a.breach("loopback in mode %s: %v", os.Getenv("LOCAL_TEST_NETWORK"), err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		req := ifreqUp("lo")
		if e := rawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req[0]))); e != unix.EPERM && !(inGuest() && e == unix.ENOTTY) {
			a.breach("change of an interface: %v", e)
		}
	}
}

func attackCalls(a *attacker) {
	buf := make([]byte, 256)
	b := uintptr(unsafe.Pointer(&buf[0]))
	a.call("bpf", unix.SYS_BPF, 0, b, 64)
	a.call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, b, 0, ^uintptr(0), ^uintptr(0), 0)
	a.call("userfaultfd", unix.SYS_USERFAULTFD, 1)
	a.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, b)
	a.call("io_uring_enter", unix.SYS_IO_URING_ENTER, 0, 0, 0)
	a.call("io_uring_register", unix.SYS_IO_URING_REGISTER, 0, 0, 0)
	a.call("fanotify_init", unix.SYS_FANOTIFY_INIT, 0, 0)
	a.call("move_pages", unix.SYS_MOVE_PAGES, 0, 0, 0, 0, 0, 0)
	a.call("migrate_pages", unix.SYS_MIGRATE_PAGES, 0, 0, 0, 0)
	a.call("set_mempolicy", unix.SYS_SET_MEMPOLICY, 0, 0, 0)
	a.call("quotactl", unix.SYS_QUOTACTL, 0, 0, 0, b)
	a.call("quotactl_fd", unix.SYS_QUOTACTL_FD, 0, 0, 0, b)
	a.call("syslog", unix.SYS_SYSLOG, 3, b, 256)
	a.call("lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, 0, b, 256)
	a.call("vhangup", unix.SYS_VHANGUP)
	for _, p := range []uintptr{0x40000, 0x400000, 0x4000000, 1, 0xfffffffe} {
		a.call("personality", unix.SYS_PERSONALITY, p)
	}
	if e := rawSyscall(unix.SYS_PERSONALITY, 0xffffffff); e != 0 {
		a.breach("asking for the personality: %v", e)
	}
}

// attackEntries calls refused calls through the other doors of the processor:
// by number, because the same number means another call behind each.
func attackEntries(a *attacker) {
	doors := map[string][]string{"x32": {"39", "165", "272", "308", "521", "250", "321"}} // getpid, mount, unshare, setns, ptrace, keyctl, bpf
	if hasOldABI {
		calls := []string{"20", "21", "52", "61", "26", "310", "346", "288", "357", "366"} // getpid, mount, umount2, chroot, ptrace, unshare, setns, keyctl, bpf, socket…
		doors["int80"], doors["code of 32 bits"] = calls, calls[:2]
	}
	for door, calls := range doors {
		if inGuest() {
			calls = calls[:1] // it has nothing behind any of these doors
		}
		for _, nr := range calls {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envAttack+"="+door, envArgs+"="+nr)
			if inGuest() {
				// Its kernel ends only the thread. That the call was not made shows
				// in that the program does not go on.
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				args, env := cmd.Args, cmd.Env
				cmd = exec.CommandContext(ctx, args[0])
				cmd.Env = env
			}
			err := cmd.Run()
			ee, ok := errors.AsType[*exec.ExitError](err)
			if inGuest() && ok && ee.ExitCode() != 0 {
				continue
			}
			if door != "x32" && ok {
				continue // a kernel without the old calls answers with a fault
			}
			if !ok || !ee.Sys().(syscall.WaitStatus).Signaled() || ee.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
				a.breach("%s, call %s: %v, want death by SIGSYS", door, nr, err)
			}
		}
	}
}

func (a *attacker) number() uint32 {
	n, _ := strconv.ParseUint(a.args[0], 10, 32)
	return uint32(n)
}

func attackFamilies(a *attacker) {
	for family := range 64 {
		for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			switch family {
			case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6:
				continue
			case unix.AF_NETLINK:
				for proto := 1; proto < 32; proto++ {
					if _, err := unix.Socket(family, typ, proto); err != unix.EAFNOSUPPORT {
						a.breach("netlink protocol %d: %v", proto, err)
					}
				}
				continue
			}
			if _, err := unix.Socket(family, typ, 0); err != unix.EAFNOSUPPORT {
				a.breach("socket family %d: %v", family, err)
			}
			if _, err := unix.Socketpair(family, typ, 0); err != unix.EAFNOSUPPORT {
				a.breach("socket pair of family %d: %v", family, err)
			}
		}
	}
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE); err != nil {
		a.breach("netlink route: %v", err)
	}
}

func attackTerminals(a *attacker) {
	fds := []int{0, 1, 2}
	if fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		a.breach("no terminals: %v", err)
	} else {
		fds = append(fds, fd)
	}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR, 0); err == nil {
		if os.Getenv("LOCAL_TEST_TERMINAL") == "" {
			a.breach("there is a controlling terminal")
		}
		fds = append(fds, fd)
	}
	c := byte('x')
	for _, fd := range fds {
		for _, high := range []uint64{0, 1 << 32, 1 << 63, 0xffffffff00000000} {
			for _, req := range []uint64{unix.TIOCSTI, 0x541c} {
				if e := rawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(high|req), uintptr(unsafe.Pointer(&c))); e != unix.EPERM {
					a.breach("ioctl %#x on %d: %v", high|req, fd, e)
				}
			}
		}
	}
}

func attackSetUID(a *attacker) {
	path := "/tmp/set-uid"
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		a.breach("read own program: %v", err)
		return
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		a.breach("write: %v", err)
		return
	}
	defer os.Remove(path)
	_ = os.Chmod(path, 0o755|os.ModeSetuid|os.ModeSetgid)
	a.refused("set file capabilities", unix.Setxattr(path, "security.capability", make([]byte, 20), 0))
	want := fmt.Sprintln(os.Geteuid(), os.Getegid())
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), envAttack+"=id")
	if out, err := cmd.Output(); err != nil || string(out) != want {
		a.breach("a set-uid program runs as %q, %v; want %q", out, err, want)
	}
	for _, p := range []string{"/usr/bin/su", "/usr/bin/mount", "/usr/bin/sudo", "/usr/bin/passwd", "/usr/bin/newgrp"} {
		if fi, err := os.Stat(p); err == nil && fi.Mode()&fs.ModeSetuid != 0 {
			if !slices.ContainsFunc(ownMounts(), func(m mountPoint) bool {
				return (m.point == "/usr" || inGuest() && m.point == "/") && slices.Contains(m.options, "nosuid")
			}) {
				a.breach("%s is set-uid on a mount that honours it", p)
			}
		}
	}
	a.refused("raise an ambient capability", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0))
	a.refused("clear no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
	header, data := capData(1 << unix.CAP_SYS_ADMIN)
	a.refused("set capabilities", rawErr(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header[0])), uintptr(unsafe.Pointer(&data[0]))), unix.EPERM)
	for _, res := range []int{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE, unix.RLIMIT_MEMLOCK, unix.RLIMIT_MSGQUEUE, unix.RLIMIT_RTPRIO, unix.RLIMIT_FSIZE} {
		a.refused("raise a limit", unix.Setrlimit(res, &unix.Rlimit{Cur: 1 << 40, Max: 1 << 40}), unix.EPERM)
	}
	param := [1]int32{1}
	a.refused("real-time priority", rawErr(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&param))), unix.EPERM, unix.EINVAL)
	if !inGuest() { // whose priorities mean nothing
		a.refused("raise the priority", unix.Setpriority(unix.PRIO_PROCESS, 0, -5), unix.EACCES, unix.EPERM)
	}
	for _, id := range []int{0, 1, 1000, 65534} {
		if id != os.Geteuid() {
			a.refused("become another user", rawErr(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)), unix.EPERM, unix.EINVAL)
			a.refused("become another group", rawErr(unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id)), unix.EPERM, unix.EINVAL)
		}
	}
}

func attackMachine(a *attacker) {
	buf := make([]byte, 256)
	b := uintptr(unsafe.Pointer(&buf[0]))
	a.call("reboot", unix.SYS_REBOOT, 0xfee1dead, 672274793, 0x89abcdef, 0)
	a.call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	a.call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, 0, 0, 0, 0, 0)
	a.call("init_module", unix.SYS_INIT_MODULE, b, 1, b)
	a.call("finit_module", unix.SYS_FINIT_MODULE, 0, b, 0)
	a.call("delete_module", unix.SYS_DELETE_MODULE, ptr("loop"), 0)
	a.call("swapon", unix.SYS_SWAPON, ptr("/tmp/x"), 0)
	a.call("swapoff", unix.SYS_SWAPOFF, ptr("/tmp/x"))
	a.call("acct", unix.SYS_ACCT, ptr("/tmp/x"))
	a.call("clock_settime", unix.SYS_CLOCK_SETTIME, 0, b)
	a.call("settimeofday", unix.SYS_SETTIMEOFDAY, b, 0)
	a.call("adjtimex", unix.SYS_ADJTIMEX, b)
	a.call("clock_adjtime", unix.SYS_CLOCK_ADJTIME, 0, b)
	a.call("sethostname", unix.SYS_SETHOSTNAME, ptr("x"), 1)
	a.call("setdomainname", unix.SYS_SETDOMAINNAME, ptr("x"), 1)
	if name, err := os.Hostname(); err != nil || name == a.args[0] {
		a.breach("the host name is visible: %q, %v", name, err)
	}
}

// attackSignals sends init everything. It is contained when init still serves.
func attackSignals(a *attacker) {
	tids := []int{1}
	if entries, err := os.ReadDir("/proc/1/task"); err == nil {
		for _, e := range entries {
			if n, err := strconv.Atoi(e.Name()); err == nil {
				tids = append(tids, n)
			}
		}
	}
	for sig := 1; sig <= 64; sig++ {
		s := uintptr(sig)
		rawSyscall(unix.SYS_KILL, 1, s)
		for _, tid := range tids {
			rawSyscall(unix.SYS_TGKILL, 1, uintptr(tid), s)
			rawSyscall(unix.SYS_TKILL, uintptr(tid), s)
		}
		if fd, err := unix.PidfdOpen(1, 0); err == nil {
			_ = unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0)
			unix.Close(fd)
		}
		// With the origin of a fault of its own.
		for _, code := range []int32{-1, -60, 1, 128} {
			var info [128]byte
			*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
			*(*int32)(unsafe.Pointer(&info[8])) = code
			rawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, s, uintptr(unsafe.Pointer(&info)))
			for _, tid := range tids {
				rawSyscall(unix.SYS_RT_TGSIGQUEUEINFO, 1, uintptr(tid), s, uintptr(unsafe.Pointer(&info)))
			}
		}
		// As the signal of a descriptor that has data.
		if fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); err == nil {
			_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETOWN, 1)
			_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETSIG, sig)
			_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
			_, _ = unix.Write(fds[1], []byte("x"))
			unix.Close(fds[0])
			unix.Close(fds[1])
		}
	}
	_ = unix.Kill(-1, unix.SIGSTOP)
	_ = unix.Kill(-1, unix.SIGTERM)
	_ = unix.Kill(-1, unix.SIGKILL)
}

func attackDisk(a *attacker) {
	for _, dir := range []string{"/tmp", "/home/user", "/var/tmp", "/dev/shm"} {
		p := filepath.Join(dir, "fill")
		f, err := os.Create(p)
		if err != nil {
			a.breach("%v", err)
			continue
		}
		block := make([]byte, 1<<20)
		for n := 0; err == nil; n++ {
			if n > 64 {
				a.breach("%s is not limited", dir)
				break
			}
			_, err = f.Write(block)
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			a.breach("%s is full: %v", dir, err)
		}
		f.Close()
		os.Remove(p)
	}
	a.refused("fill /dev", os.WriteFile("/dev/x", nil, 0o666))
	var err error
	for i := 0; err == nil; i++ {
		if i > 200000 {
			a.breach("inodes are not limited")
			break
		}
		err = os.WriteFile(filepath.Join("/tmp", strconv.Itoa(i)+strings.Repeat("n", 200)), nil, 0o666)
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		a.breach("too many files: %v", err)
	}
}
