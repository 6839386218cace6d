package envd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// inputServer notes what arrives at the input of processes.
type inputServer struct {
	processconnect.UnimplementedProcessHandler
	features string

	mu       sync.Mutex
	received bytes.Buffer // guarded by mu
	calls    int          // guarded by mu
	beats    int          // guarded by mu
	pid      uint32       // guarded by mu
}

func (s *inputServer) take(in *process.ProcessInput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received.Write(in.GetPty())
	s.received.Write(in.GetStdin())
	if bytes.HasSuffix(s.received.Bytes(), []byte("end")) {
		return connect.NewError(connect.CodeNotFound, errors.New("process with pid 7 not found"))
	}
	return nil
}

func (s *inputServer) SendInput(_ context.Context, r *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	s.mu.Lock()
	s.calls++
	s.pid = r.Msg.GetProcess().GetPid()
	s.mu.Unlock()
	return connect.NewResponse(&process.SendInputResponse{}), s.take(r.Msg.GetInput())
}

func (s *inputServer) StreamInput(_ context.Context, st *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	for st.Receive() {
		switch e := st.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			s.mu.Lock()
			s.pid = e.Start.GetProcess().GetPid()
			s.mu.Unlock()
		case *process.StreamInputRequest_Data:
			if err := s.take(e.Data.GetInput()); err != nil {
				return nil, err
			}
		case *process.StreamInputRequest_Keepalive:
			s.mu.Lock()
			s.beats++
			s.mu.Unlock()
		}
	}
	return connect.NewResponse(&process.StreamInputResponse{}), st.Err()
}

func (s *inputServer) client(t *testing.T, o Options) *Client {
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(s))
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(featuresHeader, s.features)
		w.WriteHeader(http.StatusNoContent)
	})
	return clientOf(t, mux.ServeHTTP, o)
}

func (s *inputServer) state() (received string, calls, beats int, pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received.String(), s.calls, s.beats, s.pid
}

// TestInput: what is written arrives in order, in a stream or in requests.
func TestInput(t *testing.T) {
	for _, streamed := range []bool{true, false} {
		s := &inputServer{}
		if streamed {
			s.features = "input"
		}
		in, err := s.client(t, Options{}).OpenInput(t.Context(), 7, true)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		for i := range 40 {
			p := bytes.Repeat([]byte{byte('a' + i%26)}, 1+i*i*100)
			want.Write(p)
			if err := in.Write(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		if err := in.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		got, calls, _, pid := s.state()
		if got != want.String() || pid != 7 || streamed != (calls == 0) {
			t.Errorf("streamed %v: got %d bytes of %d, %d calls, pid %d", streamed, len(got), want.Len(), calls, pid)
		}
		if err := in.Write(t.Context(), []byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("write after close: %v", err)
		}
		if err := in.Close(t.Context()); err != nil {
			t.Errorf("second close: %v", err)
		}
	}
}

// TestInputBeats: a stream that is silent is kept alive.
func TestInputBeats(t *testing.T) {
	s := &inputServer{features: "input"}
	in, err := s.client(t, Options{KeepAlive: 10 * time.Millisecond}).OpenInput(t.Context(), 7, false)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Abandon()
	if err := in.Write(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	// Also after a Write that was held up for longer than that.
	in.lock <- struct{}{}
	time.Sleep(50 * time.Millisecond)
	_, _, before, _ := s.state()
	<-in.lock
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, _, beats, _ := s.state(); beats >= before+3 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("no signs of life")
		}
	}
}

// TestInputEnds: a server that ends the stream says why at a later Write.
func TestInputEnds(t *testing.T) {
	for _, features := range []string{"input", ""} {
		s := &inputServer{features: features}
		in, err := s.client(t, Options{}).OpenInput(t.Context(), 7, false)
		if err != nil {
			t.Fatal(err)
		}
		err = in.Write(t.Context(), []byte("end"))
		for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); {
			err = in.Write(t.Context(), []byte("more"))
		}
		// A stream whose server leaves while we write may also just break.
		if c := errdefs.CodeOf(err); c != "E3010" && (features == "" || c != "E5003") {
			t.Errorf("%q: got %v", features, err)
		}
		if err := in.Write(t.Context(), []byte("x")); features != "" && err == nil {
			t.Error("a stream that has ended takes more")
		}
		in.Abandon()
	}
}

// TestInputHostile: servers that break the protocol, or do nothing, cost an error.
func TestInputHostile(t *testing.T) {
	ends := func(w http.ResponseWriter, parts ...[]byte) {
		w.Header().Set("Content-Type", "application/connect+proto")
		for _, p := range parts {
			w.Write(p)
		}
	}
	for _, c := range []struct {
		name string
		do   http.HandlerFunc
	}{
		{"success too early", func(w http.ResponseWriter, r *http.Request) { ends(w, envelope(0, nil), trailer("{}")) }},
		{"nothing", func(w http.ResponseWriter, r *http.Request) {}},
		{"no end", func(w http.ResponseWriter, r *http.Request) { ends(w, envelope(0, nil)) }},
		{"not found", func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }},
		{"garbage", func(w http.ResponseWriter, r *http.Request) { ends(w, []byte("garbage")) }},
		{"dropped", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/health" {
					w.Header().Set(featuresHeader, "input")
					w.WriteHeader(http.StatusNoContent)
					return
				}
				r.Body.Read(make([]byte, 1))
				c.do(w, r)
			}, Options{})
			in, err := cl.OpenInput(t.Context(), 7, true)
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); {
				err = in.Write(t.Context(), make([]byte, 4<<10))
			}
			if errdefs.CodeOf(err) == "" {
				t.Errorf("got %v", err)
			}
			in.Close(t.Context())
		})
	}
	t.Run("does not read", func(t *testing.T) {
		done := make(chan struct{})
		cl := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/health" {
				w.Header().Set(featuresHeader, "input")
				return
			}
			<-done
		}, Options{})
		defer close(done)
		in, err := cl.OpenInput(t.Context(), 7, true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		for err == nil {
			err = in.Write(ctx, make([]byte, 1<<20))
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		in.Abandon()
	})
}

func TestResizeUnsupported(t *testing.T) {
	s := &inputServer{}
	if err := s.client(t, Options{}).Resize(t.Context(), 7, Size{80, 24}); errdefs.CodeOf(err) != "E8004" {
		t.Errorf("got %v", err)
	}
}

// slowServer takes input, says so, and answers when it may.
type slowServer struct {
	processconnect.UnimplementedProcessHandler
	taken, answer chan struct{}
}

func (s slowServer) SendInput(ctx context.Context, _ *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	s.taken <- struct{}{}
	select {
	case <-s.answer:
		return connect.NewResponse(&process.SendInputResponse{}), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A process that ends on its last input has taken it: the answer that comes
// after the end counts. Abandon waits for none.
func TestLastInput(t *testing.T) {
	s := slowServer{taken: make(chan struct{}), answer: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(s))
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c := clientOf(t, mux.ServeHTTP, Options{})
	for name, end := range map[string]func(*Input){"Ended": (*Input).Ended, "Abandon": (*Input).Abandon} {
		in, err := c.OpenInput(t.Context(), 7, true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, ended := context.WithCancel(t.Context())
		written, given := make(chan error, 1), make(chan struct{})
		go func() { written <- in.Write(ctx, []byte("exit\n")) }()
		<-s.taken
		go func() { ended(); end(in); close(given) }()
		if name == "Ended" {
			time.Sleep(10 * time.Millisecond) // so that the end is there before the answer
			s.answer <- struct{}{}
		}
		if err := <-written; (err == nil) != (name == "Ended") {
			t.Errorf("%s: %v", name, err)
		}
		<-given
	}
}
