//go:build linux

package process

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// TestRingKeepsTheLastBytes compares a ring with a slice that keeps everything.
func TestRingKeepsTheLastBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	r := ring{size: RingSize}
	var all []byte
	for len(all) < 3*RingSize {
		p := make([]byte, rnd.IntN(chunkSize))
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		r.write(p)
		all = append(all, p...)
		if r.end != uint64(len(all)) {
			t.Fatalf("end is %d after %d bytes", r.end, len(all))
		}
		from := r.start()
		if kept := len(all) - int(from); kept != min(len(all), RingSize) && len(r.buf) == RingSize {
			t.Fatalf("a full ring keeps %d of %d bytes", kept, len(all))
		}
		pos := from + uint64(rnd.IntN(len(all)-int(from)+1))
		got := make([]byte, rnd.IntN(2*chunkSize))
		n := r.read(pos, got)
		if want := min(len(got), len(all)-int(pos)); n != want || !bytes.Equal(got[:n], all[pos:int(pos)+n]) {
			t.Fatalf("read at %d: got %d bytes, want %d, or others", pos, n, want)
		}
	}
}

// collect reads a subscription until nothing is left now.
func collect(s *subscription) (out [outputs]string, end *pb.ProcessEvent_EndEvent) {
	buf := make([]byte, chunkSize)
	for {
		i, n, end := s.next(buf)
		if n == 0 {
			return out, end
		}
		out[i] += string(buf[:n])
	}
}

func TestOutputHoldsBackForTheSlowest(t *testing.T) {
	o := newOutput(0)
	slow := o.subscribe()
	written := make(chan struct{})
	go func() {
		o.write(stdout, make([]byte, RingSize+1))
		close(written)
	}()
	select {
	case <-written:
		t.Fatal("the writer ran ahead of its reader by more than the ring")
	case <-time.After(50 * time.Millisecond):
	}
	// The other output is not held back by this one.
	o.write(stderr, []byte("e"))
	for range 2 { // the outputs come in turns
		if _, n, _ := slow.next(make([]byte, 10)); n == 0 {
			t.Fatal("nothing to read")
		}
	}
	<-written
	got, _ := collect(slow)
	if len(got[stdout])+len(got[stderr]) == 0 {
		t.Error("nothing left to read")
	}
}

func TestOutputWithoutReadersDropsTheOldest(t *testing.T) {
	o := newOutput(0)
	o.write(stdout, bytes.Repeat([]byte("a"), 100))
	o.write(stdout, bytes.Repeat([]byte("b"), RingSize))
	s := o.subscribe()
	if s.dropped[stdout] != 100 || s.dropped[stderr] != 0 {
		t.Errorf("dropped %v, want 100 and 0", s.dropped)
	}
	got, end := collect(s)
	if got[stdout] != string(bytes.Repeat([]byte("b"), RingSize)) || end != nil {
		t.Errorf("got %d bytes and end %v", len(got[stdout]), end)
	}
	want := &pb.ProcessEvent_EndEvent{Status: "x"}
	o.finish(want)
	if _, end := collect(s); end != want {
		t.Errorf("got end %v", end)
	}
}

func TestOutputForgets(t *testing.T) {
	o := newOutput(0)
	o.write(stdout, []byte("long ago"))
	o.forget()
	if n := o.kept(); n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
	o.write(stdout, []byte("now"))
	s := o.subscribe()
	if got, _ := collect(s); got[stdout] != "now" || s.dropped[stdout] != 8 {
		t.Errorf("got %q, dropped %v", got[stdout], s.dropped)
	}
	o.forget() // somebody reads: nothing may be lost
	o.write(stdout, []byte("!"))
	if got, _ := collect(s); got[stdout] != "!" {
		t.Errorf("got %q", got[stdout])
	}
}
