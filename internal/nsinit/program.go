package nsinit

import "syscall"

// EnvSocket names the environment variable that holds the number of the
// control socket's descriptor. Only a client that starts a pid 1 sets it.
const EnvSocket = "SANDBOX_NSINIT"

// MaxProgram bounds an encoded program, in bytes.
const MaxProgram = 4 << 20

const (
	magicProgram = 0x31494e53 // "SNI1", followed by the length of the rest
	magicReply   = 0x52494e53 // "SNIR", the same

	maxOps  = 4096
	maxRegs = 256
	maxArgs = 6
)

// Numbers of calls that are no system calls, above the kernel's.
const (
	// CloseInherited closes every descriptor from 3 up that was inherited and
	// is not one of the program's files, and makes those close-on-exec.
	CloseInherited = 0xff00 + iota
	// RemountTree makes every mount below its argument, a path, read-only,
	// nosuid and nodev: what mount_setattr(2) does in one call since Linux 5.12.
	RemountTree
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
)

// Int is a number, or a pointer that is nil when v is zero.
func Int(v int) Arg { return Arg{kind: argInt, value: uint64(v)} }

// Uint is a number that does not fit an int.
func Uint(v uint64) Arg { return Arg{kind: argInt, value: v} }

// Str is a pointer to s and a zero byte.
func Str(s string) Arg { return Arg{kind: argBytes, bytes: append([]byte(s), 0)} }

// Bytes is a pointer to a copy of b.
func Bytes(b []byte) Arg { return Arg{kind: argBytes, bytes: b} }

// Out is a pointer to n zero bytes that the call writes.
func Out(n int) Arg { return Arg{kind: argOut, value: uint64(n)} }

// Reg is the result of the call that stored register r.
func Reg(r int) Arg { return Arg{kind: argReg, value: uint64(r)} }

// Filter is a pointer to a sock_fprog(seccomp(2)) of the instructions in b,
// eight bytes each.
func Filter(b []byte) Arg { return Arg{kind: argProg, bytes: b} }

// A Call is one step of a program.
type Call struct {
	Name string // for errors: "mount /proc"
	Nr   uint16 // of the system call, or one of the numbers above
	Args []Arg  // at most 6

	Store  int             // register for the result, from 1; zero: none
	Ignore []syscall.Errno // of these the program goes on
	Skip   int             // after an ignored error, how many calls to leave out
	Zero   bool            // a result above zero is a failure too

	// All makes the call in every thread of the process, not only in the first.
	// Neighbours that are marked are made together. Only numbers and bytes are
	// allowed as arguments, and nothing is stored.
	All bool

	// Expect, when not nil, must be what the call has written at ExpectAt of
	// its argument ExpectArg, or the call counts as failed with EINVAL.
	Expect    []byte
	ExpectArg int
	ExpectAt  int
}

// A File is an inherited descriptor that stays open, close-on-exec.
type File struct {
	Name string
	FD   int
}

// A Program is what a pid 1 does before it is a sandbox.
type Program struct {
	Calls  []Call
	Files  []File
	Config []byte // not looked at here; see [Config]
}

// Encode returns p as it is sent over the control socket.
func (p *Program) Encode() []byte {
	e := encoder{b: make([]byte, 8, 16<<10+len(p.Config))}
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
	put32(e.b, magicProgram)
	put32(e.b[4:], uint32(len(e.b)-8))
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
	e.u16(uint16(c.Skip))
	e.u8(uint8(len(c.Ignore)))
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
		e.u8(uint8(c.ExpectArg))
		e.u32(uint32(c.ExpectAt))
		e.bytes(c.Expect)
	}
}

// decodeProgram takes the body of an encoded program apart. The result refers
// to b. It reports false for anything that Encode does not make.
func decodeProgram(b []byte) (*Program, bool) {
	d := decoder{b: b}
	p := &Program{}
	n := d.count(maxOps)
	for i := 0; i < n && !d.bad; i++ {
		p.Calls = append(p.Calls, d.call())
	}
	n = d.count(maxRegs)
	for i := 0; i < n && !d.bad; i++ {
		name := string(d.bytes())
		p.Files = append(p.Files, File{name, int(d.u32())})
	}
	p.Config = d.bytes()
	return p, !d.bad && len(d.b) == 0
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

func (d *decoder) call() Call {
	c := Call{Name: string(d.bytes()), Nr: d.u16()}
	flags := d.u8()
	c.Zero, c.All = flags&flagZero != 0, flags&flagAll != 0
	c.Store, c.Skip = int(d.u8()), int(d.u16())
	for n := d.u8(); n > 0 && !d.bad; n-- {
		c.Ignore = append(c.Ignore, syscall.Errno(d.u16()))
	}
	n := int(d.u8())
	if n > maxArgs {
		d.bad = true
	}
	for i := 0; i < n && !d.bad; i++ {
		a := Arg{kind: d.u8()}
		switch a.kind {
		case argBytes, argProg:
			a.bytes = d.bytes()
		case argInt:
			a.value = d.u64()
		case argReg:
			a.value = d.u64()
			d.bad = d.bad || a.value >= maxRegs
		case argOut:
			a.value = d.u64()
			d.bad = d.bad || a.value > 1<<16
		default:
			d.bad = true
		}
		c.Args = append(c.Args, a)
	}
	if flags&flagExpect != 0 {
		c.ExpectArg, c.ExpectAt = int(d.u8()), int(d.u32())
		c.Expect = d.bytes()
		if !d.bad && !c.expectable() {
			d.bad = true
		}
	}
	return c
}

// expectable reports whether the bytes that c expects lie in an Out argument.
func (c *Call) expectable() bool {
	if c.ExpectArg >= len(c.Args) || c.Args[c.ExpectArg].kind != argOut {
		return false
	}
	size := int(c.Args[c.ExpectArg].value)
	return c.ExpectAt <= size && len(c.Expect) <= size-c.ExpectAt
}

func put32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

func get32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
