//go:build linux

package local

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"os"
	"slices"
	"testing"

	bpfasm "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite generated files")

// The system call filter is assembled here and kept as data: the tables of the
// libraries would cost every start of a user's program most of a millisecond.

// refused is what of the base profile, which is made for containers with some
// capabilities and old kernels in mind, a sandbox does not get.
var refused = []string{
	"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", // other processes
	"keyctl", "add_key", "request_key",
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark", "lookup_dcookie",
	"mount", "umount", "umount2", "mount_setattr", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick",
	"pivot_root", "chroot", "unshare", "setns", "statmount", "listmount",
	"quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "reboot", "kexec_load", "kexec_file_load",
	"init_module", "finit_module", "delete_module", "iopl", "ioperm", "syslog", "vhangup",
	"clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "adjtimex", "settimeofday", "stime",
	"sethostname", "setdomainname", "move_pages", "migrate_pages", "mbind", "set_mempolicy", "get_mempolicy",
}

const (
	allow      = uint32(unix.SECCOMP_RET_ALLOW)
	kill       = uint32(unix.SECCOMP_RET_KILL_PROCESS)
	eperm      = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM)
	enosys     = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS)
	eafnosupp  = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EAFNOSUPPORT)
	x32Bit     = 0x40000000
	namespaces = 0x7e020000 // CLONE_NEW* but NEWTIME, which clone(2) cannot say
	tioclinux  = 0x541c
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
)

// debugNames is what debuggers need of it: the kernel still asks for the same
// user, a dumpable process and, with Landlock, the same domain, none of which
// pid 1 offers.
var debugNames = []string{"ptrace", "process_vm_readv", "process_vm_writev"}

// debugPersonality is what debuggers switch off for their child,
// ADDR_NO_RANDOMIZE.
const debugPersonality = 0x40000

// allowedNames is the base profile, resolved for no capabilities on an
// architecture, without what is refused.
func allowedNames(goarch string, debug bool) []string {
	set := map[string]bool{}
	for _, rule := range moby.DefaultProfile().Syscalls {
		if rule.Action != specs.ActAllow || len(rule.Args) > 0 {
			continue // rules about arguments are ours
		}
		if f := rule.Includes; f != nil && (len(f.Caps) > 0 || len(f.Arches) > 0 && !slices.Contains(f.Arches, goarch)) {
			continue
		}
		for _, name := range rule.Names {
			set[name] = true
		}
	}
	for _, name := range refused {
		delete(set, name)
	}
	if debug {
		for _, name := range debugNames {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// argRule writes the instructions of a call whose arguments matter. Arguments
// of type int are compared by their low half, which is all the kernel looks at.
type argRule func(p *bpfasm.Program)

func argRules(debug bool) map[string]argRule {
	personalities := []uint32{0, 8, 0x20000, 0x20008, 0xffffffff}
	if debug {
		personalities = append(personalities, debugPersonality)
	}
	return map[string]argRule{
		"clone": argClone, "clone3": argClone3, "socket": argSocket, "socketpair": argSocketpair, "ioctl": argIoctl,
		"personality": func(p *bpfasm.Program) { oneOf(p, personalities) },
		"prlimit64":   argPrlimit, "setpriority": ownPriority(unix.PRIO_USER), "ioprio_set": ownPriority(3), // IOPRIO_WHO_USER
		"sched_setscheduler": ownOnly, "sched_setparam": ownOnly, "sched_setattr": ownOnly,
	}
}

// Processes of the same user can be reached by their numbers, and init is one
// of them where a sandbox has one user only: without descriptors, or behind
// everything else that runs, it would not serve any more.
func argPrlimit(p *bpfasm.Program) {
	own, other := p.NewLabel(), p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpEqual, 0, own)
	p.LdLo(2) // the new limit: without one the call reads
	p.JmpIfTrue(bpf.JumpNotEqual, 0, other)
	p.LdHi(2)
	p.JmpIfTrue(bpf.JumpEqual, 0, own)
	p.SetLabel(other)
	ret(p, eperm)
	p.SetLabel(own)
	ret(p, allow)
}

// ownOnly allows a call whose first argument, a process, is zero: the caller.
func ownOnly(p *bpfasm.Program) {
	p.LdLo(0)
	zero(p)
}

// ownPriority is for calls whose first argument says what the second names: not
// all processes of a user.
func ownPriority(user uint32) argRule {
	return func(p *bpfasm.Program) {
		one := p.NewLabel()
		p.LdLo(0)
		p.JmpIfTrue(bpf.JumpNotEqual, user, one)
		ret(p, eperm)
		p.SetLabel(one)
		p.LdLo(1)
		zero(p)
	}
}

// zero allows when what was loaded is zero.
func zero(p *bpfasm.Program) {
	yes := p.NewLabel()
	p.JmpIfTrue(bpf.JumpEqual, 0, yes)
	ret(p, eperm)
	p.SetLabel(yes)
	ret(p, allow)
}

func argClone(p *bpfasm.Program) {
	yes := p.NewLabel()
	p.LdLo(0)
	p.JmpIfTrue(bpf.JumpBitsSet, namespaces, yes)
	ret(p, allow)
	p.SetLabel(yes)
	ret(p, eperm)
}

// Its flags lie in memory, where no filter can look.
func argClone3(p *bpfasm.Program) { ret(p, enosys) }

func argSocket(p *bpfasm.Program) {
	ok, netlink := p.NewLabel(), p.NewLabel()
	p.LdLo(0)
	for _, family := range []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		p.JmpIfTrue(bpf.JumpEqual, family, ok)
	}
	p.JmpIfTrue(bpf.JumpEqual, unix.AF_NETLINK, netlink)
	ret(p, eafnosupp)
	p.SetLabel(netlink)
	p.LdLo(2)
	p.JmpIfTrue(bpf.JumpEqual, unix.NETLINK_ROUTE, ok)
	ret(p, eafnosupp)
	p.SetLabel(ok)
	ret(p, allow)
}

func argSocketpair(p *bpfasm.Program) {
	ok := p.NewLabel()
	p.LdLo(0)
	for _, family := range []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		p.JmpIfTrue(bpf.JumpEqual, family, ok)
	}
	ret(p, eafnosupp)
	p.SetLabel(ok)
	ret(p, allow)
}

// Only the low half is looked at: a 64-bit comparison is passed by setting
// a high bit, which the kernel ignores.
func argIoctl(p *bpfasm.Program) {
	no := p.NewLabel()
	p.LdLo(1)
	p.JmpIfTrue(bpf.JumpEqual, unix.TIOCSTI, no)
	p.JmpIfTrue(bpf.JumpEqual, tioclinux, no)
	ret(p, allow)
	p.SetLabel(no)
	ret(p, eperm)
}

// oneOf allows a call with one of these as its first argument.
func oneOf(p *bpfasm.Program, values []uint32) {
	ok := p.NewLabel()
	p.LdLo(0)
	for _, v := range values {
		p.JmpIfTrue(bpf.JumpEqual, v, ok)
	}
	ret(p, eperm)
	p.SetLabel(ok)
	ret(p, allow)
}

func ret(p *bpfasm.Program, v uint32) { p.Ret(bpfasm.Action(v)) }

// A span of call numbers from first on that are treated alike.
type span struct {
	first uint32
	do    argRule
	plain uint32 // when do is nil
}

// spans covers all numbers: what the profile allows, what has a rule, EPERM for
// the rest, and ENOSYS for numbers newer than the tables, which makes C
// libraries fall back to an older call instead of failing.
func spans(info *arch.Info, goarch string, debug bool) []span {
	plain := map[uint32]uint32{}
	for _, name := range allowedNames(goarch, debug) {
		if n, ok := info.SyscallNames[name]; ok {
			plain[uint32(n)] = allow
		}
	}
	rules := map[uint32]argRule{}
	for name, r := range argRules(debug) {
		if n, ok := info.SyscallNames[name]; ok {
			rules[uint32(n)] = r
		}
	}
	var last uint32
	for n := range info.SyscallNumbers {
		last = max(last, uint32(n))
	}
	var out []span
	for n := uint32(0); n <= last; n++ {
		s := span{first: n, do: rules[n], plain: eperm}
		if v, ok := plain[n]; ok {
			s.plain = v
		}
		if k := len(out) - 1; k >= 0 && s.do == nil && out[k].do == nil && out[k].plain == s.plain {
			continue
		}
		out = append(out, s)
	}
	out = append(out, span{first: last + 1, plain: enosys})
	if goarch == "amd64" {
		out = append(out, span{first: x32Bit, plain: kill})
	}
	return out
}

// assemble returns the filter for an architecture: the architecture, then the
// number by binary search.
func assemble(info *arch.Info, goarch string, debug bool) ([]byte, error) {
	p := bpfasm.NewProgram()
	search(&p, spans(info, goarch, debug))
	body, err := p.Assemble()
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		bpf.LoadAbsolute{Off: offsetNr, Size: 4},
	}, body...))
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, i := range raw {
		b = binary.LittleEndian.AppendUint16(b, i.Op)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b, nil
}

func search(p *bpfasm.Program, s []span) {
	if len(s) == 1 {
		if s[0].do != nil {
			s[0].do(p)
		} else {
			ret(p, s[0].plain)
		}
		return
	}
	mid := len(s) / 2
	right := p.NewLabel()
	p.JmpIfTrue(bpf.JumpGreaterOrEqual, s[mid].first, right)
	search(p, s[:mid])
	p.SetLabel(right)
	search(p, s[mid:])
}

var filterArches = map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64}

// TestFilter keeps the generated filters what this file says.
func TestFilter(t *testing.T) {
	for goarch, info := range filterArches {
		var src bytes.Buffer
		fmt.Fprint(&src, "// Code generated by go test -run TestFilter -update. DO NOT EDIT.\n\npackage local\n\n")
		for _, v := range []struct {
			name, text string
			debug      bool
		}{
			{"filterCode", "the system call filter, eight bytes an instruction", false},
			{"filterDebug", "the same with what debuggers need", true},
		} {
			b, err := assemble(info, goarch, v.debug)
			if err != nil {
				t.Fatal(goarch, err)
			}
			t.Logf("%s: %s has %d instructions", goarch, v.name, len(b)/8)
			fmt.Fprintf(&src, "// %s is %s.\nconst %s = \"\" +\n", v.name, v.text, v.name)
			writeCode(&src, b)
		}
		want, err := format.Source(src.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		name := "zfilter_linux_" + goarch + ".go"
		if *update {
			if err := os.WriteFile(name, want, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate", name)
		}
	}
}

// writeCode writes a Go string of b.
func writeCode(src *bytes.Buffer, b []byte) {
	for len(b) > 0 {
		n := min(len(b), 32)
		fmt.Fprintf(src, "\t\"")
		for _, c := range b[:n] {
			fmt.Fprintf(src, "\\x%02x", c)
		}
		fmt.Fprintf(src, "\"")
		if b = b[n:]; len(b) > 0 {
			fmt.Fprintf(src, " +")
		}
		fmt.Fprintln(src)
	}
	fmt.Fprintln(src)
}

// verdict runs a filter as the kernel would.
func verdict(t *testing.T, code []byte, archID, nr uint32, args ...uint64) uint32 {
	t.Helper()
	var raw []bpf.RawInstruction
	for i := 0; i < len(code); i += 8 {
		raw = append(raw, bpf.RawInstruction{
			Op: binary.LittleEndian.Uint16(code[i:]), Jt: code[i+2], Jf: code[i+3], K: binary.LittleEndian.Uint32(code[i+4:]),
		})
	}
	prog, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("filter does not disassemble")
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	// The machine of x/net loads in network order, the kernel in its own.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offsetNr:], nr)
	binary.BigEndian.PutUint32(data[offsetArch:], archID)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offsetArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offsetArgs+8*i+4:], uint32(a>>32))
	}
	n, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func TestFilterVerdicts(t *testing.T) {
	for goarch, info := range filterArches {
		code, err := assemble(info, goarch, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			call string
			args []uint64
			want uint32
		}{
			{"read", nil, allow}, {"openat2", nil, allow}, {"execve", nil, allow}, {"wait4", nil, allow},
			{"clone", []uint64{0x11}, allow}, {"clone", []uint64{unix.CLONE_NEWUSER | 0x11}, eperm},
			{"clone", []uint64{unix.CLONE_NEWNS}, eperm}, {"clone", []uint64{unix.CLONE_NEWCGROUP}, eperm},
			{"clone3", nil, enosys}, {"unshare", nil, eperm}, {"setns", nil, eperm},
			{"socket", []uint64{unix.AF_INET, 1, 0}, allow}, {"socket", []uint64{1<<32 | unix.AF_VSOCK}, eafnosupp},
			{"socket", []uint64{unix.AF_ALG}, eafnosupp}, {"socket", []uint64{unix.AF_PACKET}, eafnosupp},
			{"socket", []uint64{unix.AF_NETLINK, 3, 0}, allow}, {"socket", []uint64{unix.AF_NETLINK, 3, 9}, eafnosupp},
			{"socketpair", []uint64{unix.AF_UNIX}, allow}, {"socketpair", []uint64{unix.AF_TIPC}, eafnosupp},
			{"ioctl", []uint64{0, unix.TIOCSTI}, eperm}, {"ioctl", []uint64{0, 1<<32 | unix.TIOCSTI}, eperm},
			{"ioctl", []uint64{0, tioclinux}, eperm}, {"ioctl", []uint64{0, unix.TIOCGWINSZ}, allow},
			{"prlimit64", []uint64{0, 7, 1}, allow}, {"prlimit64", []uint64{1, 7, 0}, allow}, {"prlimit64", []uint64{1, 7, 0x1000}, eperm},
			{"prlimit64", []uint64{5, 7, 1 << 32}, eperm}, {"prlimit64", []uint64{1 << 32, 7, 0x1000}, allow},
			{"setpriority", []uint64{0, 0, 5}, allow}, {"setpriority", []uint64{0, 1, 5}, eperm},
			{"setpriority", []uint64{2, 0, 5}, eperm}, {"setpriority", []uint64{1, 0, 5}, allow},
			{"ioprio_set", []uint64{1, 0, 5}, allow}, {"ioprio_set", []uint64{3, 0, 5}, eperm}, {"ioprio_set", []uint64{1, 7, 5}, eperm},
			{"sched_setscheduler", []uint64{0, 5}, allow}, {"sched_setscheduler", []uint64{1, 5}, eperm},
			{"sched_setattr", []uint64{1}, eperm}, {"sched_setparam", []uint64{1}, eperm}, {"sched_setaffinity", []uint64{1}, allow},
			{"personality", []uint64{0x20000}, allow}, {"personality", []uint64{0x40000}, eperm},
		} {
			n, ok := info.SyscallNames[c.call]
			if !ok {
				t.Errorf("%s: %s has no number", goarch, c.call)
				continue
			}
			if got := verdict(t, code, uint32(info.ID), uint32(n), c.args...); got != c.want {
				t.Errorf("%s: %s%v = %#x, want %#x", goarch, c.call, c.args, got, c.want)
			}
		}
		for _, name := range refused {
			if n, ok := info.SyscallNames[name]; ok {
				if got := verdict(t, code, uint32(info.ID), uint32(n)); got != eperm {
					t.Errorf("%s: %s = %#x, want EPERM", goarch, name, got)
				}
			}
		}
		if got := verdict(t, code, uint32(info.ID), 9999); got != enosys {
			t.Errorf("%s: a call of the future = %#x, want ENOSYS", goarch, got)
		}
		if got := verdict(t, code, uint32(arch.I386.ID), 3); got != kill {
			t.Errorf("%s: another architecture = %#x, want kill", goarch, got)
		}
	}
	code, _ := assemble(arch.X86_64, "amd64", false)
	if got := verdict(t, code, uint32(arch.X86_64.ID), x32Bit|1); got != kill {
		t.Errorf("x32 = %#x, want kill", got)
	}
}

// With debugging, what the name says is allowed, and nothing else changes.
func TestFilterDebugVerdicts(t *testing.T) {
	for goarch, info := range filterArches {
		plain, err := assemble(info, goarch, false)
		if err != nil {
			t.Fatal(err)
		}
		code, err := assemble(info, goarch, true)
		if err != nil {
			t.Fatal(err)
		}
		for name, nr := range info.SyscallNames {
			got, want := verdict(t, code, uint32(info.ID), uint32(nr)), verdict(t, plain, uint32(info.ID), uint32(nr))
			if slices.Contains(debugNames, name) {
				want = allow
			}
			if got != want {
				t.Errorf("%s: %s = %#x, want %#x", goarch, name, got, want)
			}
		}
		nr := uint32(info.SyscallNames["personality"])
		if verdict(t, code, uint32(info.ID), nr, debugPersonality) != allow || verdict(t, code, uint32(info.ID), nr, 0x0400000) != eperm {
			t.Errorf("%s: personality", goarch)
		}
	}
}
