//go:build linux

package local

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/layertar"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// The files of a sandbox leave it over the control socket. The client asks with
// opSnapshot or opHibernate; init stops everything inside and sends
//
//   - a line, a captureAnswer
//   - the archive of what was written, in parts: a length of four bytes, and so
//     many bytes; a length of zero ends it
//   - another line, which says whether the archive is whole
//
// and lets everything go on. With opHibernate it waits, everything stopped, for a
// request opCommit first, upon which the sandbox ends.

// captureAnswer is a line of init.
type captureAnswer struct {
	Error   string          `json:"error,omitempty"` // one of the refusals, or "failed"
	Detail  string          `json:"detail,omitempty"`
	Full    bool            `json:"full,omitempty"`    // the disk is: that is why
	Dropped int64           `json:"dropped,omitempty"` // sockets, pipes and devices that were left out
	Request json.RawMessage `json:"request,omitempty"` // of the creation; answer to opHibernate
}

const (
	capturePart  = 256 << 10        // bytes
	captureStall = 30 * time.Second // that one side waits for the other to take or send a part
	captureLimit = 15 * time.Minute // from the first stop to the last byte
	captureLine  = 8 << 20          // bytes: an environment can have one MiB
)

// capture answers a request for the files, in init. It reports whether the line
// was one.
func (ctl *controller) capture(c net.Conn, line []byte) bool {
	var req controlRequest
	if json.Unmarshal(line, &req) != nil || req.Op != opSnapshot && req.Op != opHibernate || !sameSecret(req.Token, ctl.token) {
		return false
	}
	send := func(a captureAnswer) error {
		b, err := json.Marshal(a)
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(captureStall))
		_, err = c.Write(append(b, '\n'))
		return err
	}
	if _, err := ctl.life.end(); err != nil {
		_ = send(captureAnswer{Error: refusedEnded})
		return true
	}
	err := ctl.pause.during(func() error {
		first := captureAnswer{}
		if req.Op == opHibernate {
			first.Request = ctl.request
		}
		if err := send(first); err != nil {
			return err
		}
		w := &partWriter{c: c, end: time.Now().Add(captureLimit)}
		buffered := bufio.NewWriterSize(w, capturePart)
		stats, err := layertar.Pack(buffered, ctl.files, layertar.PackOptions{Upper: ctl.layered})
		if err == nil {
			err = buffered.Flush()
		}
		if w.failed {
			return err // nobody listens
		}
		last := captureAnswer{Dropped: stats.Dropped}
		if err != nil {
			last.Error, last.Detail = refusedFailed, clip(err.Error())
		}
		if err := errors.Join(w.close(), send(last)); err != nil || last.Error != "" || req.Op == opSnapshot {
			return err
		}
		c.SetDeadline(time.Now().Add(captureLimit)) // while the client keeps what it has
		commit, err := bufio.NewReaderSize(c, controlLine).ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("no word that the files are kept: %w", err)
		}
		req = controlRequest{}
		if json.Unmarshal(commit, &req) == nil && req.Op == opCommit && sameSecret(req.Token, ctl.token) {
			return ctl.life.sleep()
		}
		return errForm
	})
	if err != nil {
		ctl.log.Warn("files not sent", "err", err)
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		_ = send(captureAnswer{Error: refusedFailed, Detail: clip(err.Error()), Full: full}) // perhaps to nobody
	}
	return true
}

// partWriter sends parts.
type partWriter struct {
	c      net.Conn
	end    time.Time
	failed bool
}

// Write sends p as one part.
func (w *partWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return len(p), w.send(p)
}

func (w *partWriter) send(p []byte) error {
	now := time.Now()
	if now.After(w.end) {
		w.failed = true
		return errors.New("it takes too long")
	}
	w.c.SetDeadline(now.Add(captureStall))
	head := binary.BigEndian.AppendUint32(nil, uint32(len(p)))
	b := net.Buffers{head, p}
	_, err := b.WriteTo(w.c)
	w.failed = w.failed || err != nil
	return err
}

func (w *partWriter) close() error { return w.send(nil) }

// partReader reads parts up to the last one.
type partReader struct {
	r    *bufio.Reader
	left int
	done bool
}

// Read reads from the part that is there.
func (r *partReader) Read(p []byte) (int, error) {
	for r.left == 0 {
		if r.done {
			return 0, io.EOF
		}
		var head [4]byte
		if _, err := io.ReadFull(r.r, head[:]); err != nil {
			return 0, noEOF(err)
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > 2*capturePart {
			return 0, errors.New("a part of the archive is too long")
		}
		r.left, r.done = int(n), n == 0
	}
	n, err := r.r.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, noEOF(err)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// captured is what came of a sandbox.
type captured struct {
	layer   *layer // not published; nil: nothing was written since its layers
	name    string // to publish it under
	size    int64
	dropped int64
	request json.RawMessage

	// hold makes the end of ctx end nothing any more; the error of ctx when it has
	// ended already. Until close, or commit, init keeps everything stopped.
	hold   func() error
	commit func() error // makes init end; only of opHibernate, after hold
	close  func()
}

// takeFiles writes what the sandbox of e has written into a new layer. The
// caller closes the result.
func (t *tree) takeFiles(ctx context.Context, e *entry, op string, conf *savedConfig) (_ *captured, err error) {
	token, err := e.token()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", e.dir.address(fileControl))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	out := &captured{}
	out.close = func() {
		stop()
		c.Close()
		if out.layer != nil {
			out.layer.discard()
		}
	}
	defer func() {
		if err != nil {
			out.close()
		}
	}()
	ask := func(op string) error {
		b, err := json.Marshal(controlRequest{Token: token.Reveal(), Op: op})
		if err == nil {
			_, err = c.Write(append(b, '\n'))
		}
		return err
	}
	if err := ask(op); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(c, capturePart)
	first, err := readCapture(r)
	if err != nil {
		return nil, err
	}
	out.request = first.Request
	if out.layer, err = t.beginLayer(ctx); err != nil {
		return nil, err
	}
	if err := out.unpack(ctx, &partReader{r: r}, conf); err != nil {
		return nil, explainCapture(err)
	}
	last, err := readCapture(r)
	if err != nil {
		return nil, err
	}
	out.dropped = last.Dropped
	out.hold = func() error {
		if !stop() {
			return context.Cause(ctx)
		}
		return nil
	}
	out.commit = func() error {
		if err := c.SetDeadline(time.Now().Add(killLimit)); err != nil {
			return err
		}
		if err := ask(opCommit); err != nil {
			return err
		}
		_, err := r.ReadByte()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err == nil && r.UnreadByte() == nil {
			_, err = readCapture(r) // it says why
		}
		return cmp.Or(err, errors.New("init does not end"))
	}
	return out, nil
}

func readCapture(r *bufio.Reader) (a captureAnswer, err error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull || len(line) > captureLine {
			return a, fmt.Errorf("answer of init: %w", noEOF(err))
		}
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("answer of init: %w", err)
	}
	switch a.Error {
	case "":
		return a, nil
	case refusedEnded:
		return a, errEnded
	}
	if a.Full {
		return a, stateError("keep files of sandbox", "init: "+clip(a.Detail), unix.ENOSPC)
	}
	return a, &errdefs.Error{Code: "E2000", Op: "keep files of sandbox", Message: "init cannot send its files: " + clip(a.Error+" "+a.Detail)}
}

// unpack writes the archive and syncs it.
func (out *captured) unpack(ctx context.Context, r io.Reader, conf *savedConfig) error {
	sum := sha256.New()
	kind := mappingKind()
	fmt.Fprintf(sum, "files %s\n", kind) // the same archive belongs to others then
	limit := conf.Resources.DiskMiB << 20
	o := ownerOptions(kind)
	o.Snapshot = true
	o.Bytes = limit + limit/4 + 256<<20 // names and attributes come on top
	o.Entries = max(layertar.DefaultEntries, limit>>12)
	w := treeWork{Op: workUnpack, Name: out.layer.name, Options: o}
	stats, err := w.run(ctx, out.layer.t.layers, io.TeeReader(r, sum))
	if err != nil {
		return err
	}
	out.size, out.name = stats.Bytes, hex.EncodeToString(sum.Sum(nil))
	if stats.Entries == 0 && len(conf.Layers) > 0 {
		out.layer.discard()
		out.layer = nil
		return nil
	}
	return out.layer.sync()
}

func explainCapture(err error) error {
	const op = "keep files of sandbox"
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return stateError(op, "keep its files", err)
	}
	if _, ok := errors.AsType[*layertar.LimitError](err); ok || errors.Is(err, os.ErrPermission) {
		return &errdefs.Error{Code: "E2000", Op: op, Message: "its files cannot be kept", Err: err}
	}
	return err
}
