package nsinit

import "syscall"

// MaxReply bounds an encoded reply, in bytes.
const MaxReply = 64 << 10

// maxName bounds the name of a file that is sent or kept, in bytes.
const maxName = 256

// FileSize returns the size of the name that follows the header h of a file.
// The descriptor comes with the header. It reports false when h is no such
// header: what comes is the reply.
func FileSize(h []byte) (int, bool) {
	if len(h) != HeaderSize || get32(h) != magicFile {
		return 0, false
	}
	n := get32(h[4:])
	return int(n), n <= maxName
}

// A Reply is what a pid 1 says to its client, once: that a step of the program
// failed, or that it is ready.
type Reply struct {
	Step  string        // the name of the call that failed; empty: ready
	Errno syscall.Errno // of the call that failed
	Ready []byte        // as given to [Ready]
}

func (r *Reply) encode() []byte {
	e := encoder{b: make([]byte, HeaderSize, 64+len(r.Step)+len(r.Ready))}
	e.u32(uint32(r.Errno))
	e.bytes([]byte(r.Step))
	e.bytes(r.Ready)
	put32(e.b, magicReply)
	put32(e.b[4:], uint32(len(e.b)-HeaderSize))
	return e.b
}

// ReplySize returns the size of the body that follows the header h. It reports
// false when h is not the header of a reply.
func ReplySize(h []byte) (int, bool) {
	if len(h) != HeaderSize || get32(h) != magicReply {
		return 0, false
	}
	n := get32(h[4:])
	return int(n), n <= MaxReply
}

// DecodeReply takes the body of a reply apart. The bytes are foreign: it
// reports false for anything that is not a reply.
func DecodeReply(body []byte) (Reply, bool) {
	d := decoder{b: body}
	r := Reply{Errno: syscall.Errno(d.u32()), Step: string(d.bytes()), Ready: d.bytes()}
	return r, !d.bad && len(d.b) == 0
}
