package nsinit

import "syscall"

// EnvSocket names the environment variable that holds the number of the
// control socket's descriptor. Only a client that starts a pid 1 sets it.
const EnvSocket = "SANDBOX_NSINIT"

// HeaderSize is the size in bytes of what comes before the body of a program
// and of a reply. Descriptors are sent with the header of a program.
const HeaderSize = 8

// MaxProgram bounds an encoded program, in bytes.
const MaxProgram = 4 << 20

const (
	magicProgram = 0x32494e53 // "SNI2", followed by the length of the rest
	magicReply   = 0x52494e53 // "SNIR", the same
	magicFile    = 0x46494e53 // "SNIF", followed by the length of a name

	maxOps   = 4096
	maxRegs  = 256
	maxArgs  = 6
	maxFiles = 256
	maxOut   = 4096 // of one call, in bytes
	maxAll   = 128  // calls made together in every thread
	maxTrees = 250  // descriptors of one message, see unix(7): 253
)

// Numbers of calls that are no system calls, above the kernel's.
const (
	// CloseInherited closes every descriptor from 3 up that was inherited and
	// is not one of the program's files, and makes those close-on-exec.
	CloseInherited = 0xff00 + iota
	// RemountTree makes every mount below its argument, a path, read-only,
	// nosuid and nodev: what mount_setattr(2) does in one call since Linux 5.12.
	RemountTree
	// Deafen keeps signals that processes send from ending this one.
	Deafen
	// SendFile sends its first argument, a name, to the client together with the
	// descriptor in its second. It does nothing when that, or a further register
	// among its arguments, is of a call that failed and was allowed to.
	SendFile
	// KeepFile makes the descriptor in its second argument a file of the program
	// under the name in its first, as if it had been inherited, under the
	// conditions of SendFile.
	KeepFile
)

// An Arg is one argument of a call.
type Arg struct {
	kind  uint8
	value uint64
	bytes []byte
}

const (
	argInt   = iota // value
	argBytes        // pointer to bytes
	argOut          // pointer to value zero bytes
	argReg          // result stored in register value
	argProg         // pointer to a sock_fprog(bytes)
	argFD           // descriptor number value of those sent with the program
)

// Int is a number, or a nil pointer when v is zero.
func Int(v int) Arg { return Arg{kind: argInt, value: uint64(v)} }

// Str is a pointer to s and a zero byte.
func Str(s string) Arg { return Arg{kind: argBytes, bytes: append([]byte(s), 0)} }

// Bytes is a pointer to a copy of b.
func Bytes(b []byte) Arg { return Arg{kind: argBytes, bytes: b} }

// Out is a pointer to n zero bytes that the call writes; at most 4096. Calls
// share the memory.
func Out(n int) Arg { return Arg{kind: argOut, value: uint64(n)} }

// Reg is the result of the call that stored register r.
func Reg(r int) Arg { return Arg{kind: argReg, value: uint64(r)} }

// Sent is the descriptor that was sent with the program as number i, from 0.
func Sent(i int) Arg { return Arg{kind: argFD, value: uint64(i)} }

// Filter is a pointer to a sock_fprog(seccomp(2)) of the instructions in b,
// eight bytes each.
func Filter(b []byte) Arg { return Arg{kind: argProg, bytes: b} }

// A Call is one step of a program.
type Call struct {
	Name string // for errors: "mount /proc"
	Nr   uint16 // of the system call, or one of the numbers above
	Args []Arg  // at most 6

	Store  int             // register for the result, from 1; zero: none. After a failure it holds -1
	Ignore []syscall.Errno // of these the program goes on
	Zero   bool            // a result above zero is a failure too

	// Count, when above one, repeats the call so often, each time with the
	// second argument, an Int, one higher.
	Count int

	// All makes the call in every thread of the process, not only in the first.
	// Neighbours that are marked are made together. Only numbers and bytes are
	// allowed as arguments, and nothing is stored.
	All bool

	// Expect, when not nil, must be what the call has written at ExpectAt of
	// its Out argument, or the call counts as failed with EINVAL.
	Expect   []byte
	ExpectAt int
}

// A File is a descriptor that stays open, close-on-exec: an inherited one, with
// [Opened] one that a call has opened, or with [SentFile] one that came with the
// program.
type File struct {
	Name string
	FD   int
}

// Opened stands for the descriptor in register r. The call must have opened it
// close-on-exec.
func Opened(r int) int { return openedFD | r }

// SentFile stands for the descriptor that was sent with the program as number i,
// from 0.
func SentFile(i int) int { return sentFD | i }

const (
	openedFD = 1 << 24
	sentFD   = 1 << 25
)

// A Program is what a pid 1 does before it is a sandbox.
type Program struct {
	Calls  []Call
	Files  []File
	Config []byte // not looked at here; see [Config]
	Probe  bool   // say ready and end, when all calls are made
}

// Encode returns p as it is sent over the control socket.
func (p *Program) Encode() []byte {
	e := encoder{b: make([]byte, HeaderSize, 32<<10+len(p.Config))}
	e.u32(uint32(len(p.Calls)))
	for i := range p.Calls {
		e.call(&p.Calls[i])
	}
	e.u32(uint32(len(p.Files)))
	for _, f := range p.Files {
		e.bytes([]byte(f.Name))
		e.u32(uint32(f.FD))
	}
	e.bytes(p.Config)
	probe := uint8(0)
	if p.Probe {
		probe = 1
	}
	e.u8(probe)
	put32(e.b, magicProgram)
	put32(e.b[4:], uint32(len(e.b)-HeaderSize))
	return e.b
}

const (
	flagZero = 1 << iota
	flagAll
	flagExpect
)

type encoder struct{ b []byte }

func (e *encoder) u8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) u16(v uint16) { e.b = append(e.b, byte(v), byte(v>>8)) }
func (e *encoder) u32(v uint32) { e.b = append(e.b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24)) }
func (e *encoder) u64(v uint64) { e.u32(uint32(v)); e.u32(uint32(v >> 32)) }

func (e *encoder) bytes(b []byte) {
	e.u32(uint32(len(b)))
	e.b = append(e.b, b...)
}

func (e *encoder) call(c *Call) {
	e.bytes([]byte(c.Name))
	e.u16(c.Nr)
	var flags uint8
	if c.Zero {
		flags |= flagZero
	}
	if c.All {
		flags |= flagAll
	}
	if c.Expect != nil {
		flags |= flagExpect
	}
	e.u8(flags)
	e.u8(uint8(c.Store))
	e.u8(uint8(max(c.Count, 1)))
	e.u8(uint8(2 * len(c.Ignore)))
	for _, n := range c.Ignore {
		e.u16(uint16(n))
	}
	e.u8(uint8(len(c.Args)))
	for _, a := range c.Args {
		e.u8(a.kind)
		if a.kind == argBytes || a.kind == argProg {
			e.bytes(a.bytes)
		} else {
			e.u64(a.value)
		}
	}
	if c.Expect != nil {
		e.u32(uint32(c.ExpectAt))
		e.bytes(c.Expect)
	}
}

// A step is a decoded Call. It refers to the program and allocates nothing:
// what dominates the start of a pid 1 is the memory that it touches.
type step struct {
	name     []byte
	nr       uint16
	flags    uint8
	store    uint8
	count    uint8
	ignore   []byte // two bytes each
	nargs    int
	args     [maxArgs]Arg
	expectAt int
	expect   []byte
}

func (s *step) ignores(e syscall.Errno) bool {
	for i := 0; i+1 < len(s.ignore); i += 2 {
		if syscall.Errno(uint16(s.ignore[i])|uint16(s.ignore[i+1])<<8) == e {
			return true
		}
	}
	return false
}

// checkProgram reports whether body is what Encode makes, with descriptors sent
// along numbering fds.
func checkProgram(body []byte, fds int) bool {
	d := decoder{b: body}
	var s step
	all := 0
	for n := d.count(maxOps); n > 0 && !d.bad; n-- {
		d.step(&s)
		if s.flags&flagAll == 0 {
			all = 0
		} else if all += int(s.count); all > maxAll {
			return false
		}
		for i := range s.args[:s.nargs] {
			if s.args[i].kind == argFD && s.args[i].value >= uint64(fds) {
				return false
			}
		}
	}
	for n := d.count(maxFiles); n > 0 && !d.bad; n-- {
		d.bytes()
		switch fd := int(d.u32()); {
		case fd&openedFD != 0 && fd&^openedFD >= maxRegs, fd&sentFD != 0 && fd&^sentFD >= fds:
			return false
		}
	}
	d.bytes()
	d.bad = d.bad || d.u8() > 1
	return !d.bad && len(d.b) == 0
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.b) {
		d.bad = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.take(2); b != nil {
		return uint16(b[0]) | uint16(b[1])<<8
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return get32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	lo := d.u32()
	return uint64(lo) | uint64(d.u32())<<32
}

func (d *decoder) bytes() []byte { return d.take(int(d.u32())) }

func (d *decoder) count(limit int) int {
	n := int(d.u32())
	if n < 0 || n > limit {
		d.bad = true
		return 0
	}
	return n
}

// step decodes the next call into s.
func (d *decoder) step(s *step) {
	s.name, s.nr, s.flags = d.bytes(), d.u16(), d.u8()
	s.store, s.count = d.u8(), d.u8()
	s.ignore = d.take(int(d.u8()))
	s.nargs = int(d.u8())
	if s.nargs > maxArgs || s.count == 0 {
		d.bad, s.nargs = true, 0
	}
	out := -1
	for i := range s.args[:s.nargs] {
		a := &s.args[i]
		*a = Arg{kind: d.u8()}
		switch a.kind {
		case argBytes, argProg:
			a.bytes = d.bytes()
			d.bad = d.bad || len(a.bytes) == 0
		case argInt, argFD:
			a.value = d.u64()
		case argReg:
			a.value = d.u64()
			d.bad = d.bad || a.value >= maxRegs
		case argOut:
			a.value = d.u64()
			d.bad = d.bad || a.value > maxOut || out >= 0
			out = int(a.value)
		default:
			d.bad = true
		}
	}
	if s.count > 1 && (s.nargs < 2 || s.args[1].kind != argInt) {
		d.bad = true
	}
	s.expect = nil
	if s.flags&flagExpect != 0 {
		s.expectAt, s.expect = int(d.u32()), d.bytes()
		d.bad = d.bad || s.expectAt > out || len(s.expect) > out-s.expectAt
	}
}

func put32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

func get32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
