//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

var _ = []any{bytes.NewReader, io.EOF, os.Getpid, filepath.Join, strings.Cut, errors.Is, time.Second, slog.Default, net.Dial, errdefs.ErrAuth, process.StartRequest{}, processconnect.NewProcessClient, connect.CodeOf}

func httpClient(sb *providers.Sandbox) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.Data.Dial(ctx) }}}
}

func TestQuick(t *testing.T) {
	p, err := New(providers.Config{StateDir: testRoot(t), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t0 := time.Now()
	sb, err := p.Create(t.Context(), providers.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(t0), sb)
	r, err := p.Report(t.Context(), sb.ID)
	t.Logf("%+v %v", r, err)
	for range 5 {
		t0 = time.Now()
		sb2, err := p.Create(t.Context(), providers.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		t1 := time.Now()
		if err := p.Kill(t.Context(), sb2.ID); err != nil {
			t.Fatal(err)
		}
		t.Log(t1.Sub(t0), time.Since(t1))
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	checkEmpty2(t, p.root)
}

func checkEmpty2(t *testing.T, root string) {
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	checkEmpty(t, tr)
}
