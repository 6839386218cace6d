package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// BenchmarkCreate makes and kills sandboxes through the gateway and, in the
// same run, directly.
func BenchmarkCreate(b *testing.B) {
	f := startLocal(b, Options{})
	b.Run("gateway", func(b *testing.B) {
		f.t = b
		for b.Loop() {
			sb := f.create(nil)
			b.StopTimer()
			f.want(f.do("DELETE", "/sandboxes/"+sb.SandboxID, nil), 204)
			b.StartTimer()
		}
	})
	b.Run("direct", func(b *testing.B) {
		ctx := context.Background()
		for b.Loop() {
			sb, err := f.provider.Create(ctx, providers.CreateRequest{Detached: true})
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := f.provider.Kill(ctx, sb.ID); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	f.t = b
}

// BenchmarkRoundTrip runs a shell line that does nothing, through the gateway
// and over the runtime's own socket.
func BenchmarkRoundTrip(b *testing.B) {
	f := startLocal(b, Options{})
	sb := f.create(nil)
	each := func(b *testing.B, f *fixture) {
		for b.Loop() {
			f.run(sb, ":")
		}
	}
	b.Run("gateway", func(b *testing.B) { each(b, &fixture{t: b, addr: f.addr, client: f.client}) })
	b.Run("direct", func(b *testing.B) { each(b, f.direct(b, sb)) })
}

// direct is a fixture whose requests go to the runtime of a sandbox.
func (f *fixture) direct(b *testing.B, sb api.Sandbox) *fixture {
	got, err := f.provider.Get(context.Background(), sb.SandboxID)
	if err != nil {
		b.Fatal(err)
	}
	tr := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return got.Data.Dial(ctx) }}
	b.Cleanup(tr.CloseIdleConnections)
	return &fixture{t: b, addr: "sandbox", client: &http.Client{Transport: tr}}
}

const bodySize = 100 << 20

// zeros is a body of n bytes whose length is known.
func zeros(n int64) io.Reader { return io.LimitReader(endless{}, n) }

type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// BenchmarkBody moves 100 MiB each way through the gateway, over the runtime's
// own socket, and through a bare TCP socket.
func BenchmarkBody(b *testing.B) {
	f := startLocal(b, Options{})
	sb := f.create(nil)
	up := func(b *testing.B, f *fixture) {
		f.t = b
		b.SetBytes(bodySize)
		for b.Loop() {
			r := f.data(sb, envdPort, "POST", "/files?path=big", zeros(bodySize), "Content-Type", "application/octet-stream")
			if r.StatusCode != 200 {
				b.Fatalf("%d %s", r.StatusCode, r.body)
			}
		}
	}
	down := func(b *testing.B, f *fixture) {
		f.t = b
		b.SetBytes(bodySize)
		for b.Loop() {
			req, _ := http.NewRequest("GET", "http://"+f.addr+"/files?path=big", nil)
			for k, v := range map[string]string{"E2b-Sandbox-Id": sb.SandboxID, "E2b-Sandbox-Port": fmt.Sprint(envdPort),
				"X-Access-Token": sb.EnvdAccessToken, "Accept-Encoding": "identity"} {
				req.Header.Set(k, v)
			}
			res, err := f.client.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if n != bodySize || err != nil {
				b.Fatal(n, err)
			}
		}
	}
	if r := f.data(sb, envdPort, "POST", "/files?path=big", zeros(bodySize), "Content-Type", "application/octet-stream"); r.StatusCode != 200 {
		b.Fatalf("%d %s", r.StatusCode, r.body)
	}
	through := &fixture{t: b, addr: f.addr, client: f.client}
	direct := f.direct(b, sb)
	b.Run("up/gateway", func(b *testing.B) { up(b, through) })
	b.Run("up/direct", func(b *testing.B) { up(b, direct) })
	b.Run("down/gateway", func(b *testing.B) { down(b, through) })
	b.Run("down/direct", func(b *testing.B) { down(b, direct) })
	b.Run("socket", bareSocket)
}

// bareSocket copies the same bytes through a TCP connection.
func bareSocket(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	buf := bytes.Repeat([]byte{0}, 64<<10)
	b.SetBytes(bodySize)
	for b.Loop() {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for range bodySize / len(buf) {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 64<<10))
		c.Close()
		if n != bodySize || err != nil {
			b.Fatal(n, err)
		}
	}
}
