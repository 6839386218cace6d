package sandboxfn

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
)

// begun is the beginning of an upcall of a call, by hand: a body of size bytes is
// announced, and came of them are there.
func begun(id, call uint64, size, came int) []byte {
	up := envelope.AppendUpcall(nil, call, envelope.UpCall, 0)
	table := append(binary.AppendUvarint(nil, uint64(size)), 0)
	head := func(n int, t frame.Type, flags byte) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(n))
		return binary.LittleEndian.AppendUint64(append(b, byte(t), flags, 0, 0), 1<<63|id)
	}
	b := append(head(len(table)+len(up), frame.Upcall, 1), append(table, up...)...)
	for came -= len(up); came > 0; came -= frame.MaxPiece {
		n := min(came, frame.MaxPiece)
		b = append(append(b, head(n, frame.Segment, 0)...), make([]byte, n)...)
	}
	return b
}

func heapInUse() int64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// What a worker has begun to send for a call is not kept after it.
func TestUnfinishedMessagesEndWithTheCall(t *testing.T) {
	const size = 40 << 20
	m := &fakeMaker{onCall: func(w *fakeWorker, call int) bool {
		if call == 1 {
			b := begun(1, 1, size, size-1)
			if _, err := w.theirs.Write(b); err != nil {
				t.Error(err)
			}
		}
		return true
	}}
	ctx, _ := poolContext(t, m)
	before := heapInUse()
	mustDouble(t, ctx, poolDouble)
	if n := heapInUse() - before; n > size/4 {
		t.Errorf("%d MiB are kept after the call", n>>20)
	}
	mustDouble(t, ctx, poolDouble) // the worker is of use
	if n := m.started.Load(); n != 1 {
		t.Errorf("%d workers were started", n)
	}
}

// Many messages that a worker has begun to send are refused.
func TestUnfinishedMessagesAreBounded(t *testing.T) {
	m := &fakeMaker{onCall: func(w *fakeWorker, call int) bool {
		for i := range 10 {
			w.theirs.Write(begun(uint64(i), 1, 64<<20, 0))
		}
		return true
	}}
	ctx, _ := poolContext(t, m)
	before := heapInUse()
	_, err := poolDouble.Call(ctx, 1)
	if CodeOf(err) != "E9006" {
		t.Errorf("got %v", err)
	}
	if n := heapInUse() - before; n > 16<<20 {
		t.Errorf("%d MiB are kept", n>>20)
	}
}

// What callbacks keep is bounded also when it is segments without bytes.
func TestEmptySegmentsCount(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	defer ours.Close()
	w := newWorkerConn(ours, &fakeWorker{}, nil, nil)
	h := &hostCall{w: w, name: "f", limit: 1 << 20, lent: &lent{}, caller: context.Background()}
	const n = 10
	for id := range uint64(n) { // nobody reads the answers: all are under way
		p := envelope.Payload{Body: []byte{1}, Segments: make([][]byte, 16<<10)}
		if err := h.upcall(id, envelope.UpCall, 0, p); err != nil {
			t.Fatal(err)
		}
	}
	r, over := frame.NewReader(theirs), 0
	for range n {
		m, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(m.Body, []byte("max_payload")) {
			over++
		}
	}
	if want := n - (1<<20)/(16<<10*segmentSize); over != want {
		t.Errorf("%d were refused, want %d", over, want)
	}
}
