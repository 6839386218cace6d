//go:build linux

package code

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// BenchmarkReady makes and removes contexts; ×bare is against starting the bare
// interpreter in the same run.
func BenchmarkReady(b *testing.B) {
	s, ctx := benchService(b)
	var ready, bare time.Duration
	for b.Loop() {
		t0 := time.Now()
		c, err := s.Create(ctx, "python", "")
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := exec.Command("/usr/bin/python3", "-c", "pass").Run(); err != nil {
			b.Fatal(err)
		}
		bare += time.Since(t1)
		ready += t1.Sub(t0)
		if err := s.Remove(c.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(ready)/float64(bare), "×bare")
}

// BenchmarkCell runs small cells; ×bare is against starting an interpreter for
// each of them.
func BenchmarkCell(b *testing.B) {
	s, ctx := benchService(b)
	none := func(*Event) error { return nil }
	t0 := time.Now()
	if err := exec.Command("/usr/bin/python3", "-c", "x = 1; x + 1").Run(); err != nil {
		b.Skip(err)
	}
	bare := time.Since(t0)
	cell := &Cell{Code: "x = 1; x + 1"}
	if err := s.Execute(ctx, cell, none); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.Execute(ctx, cell, none); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(bare), "×bare")
}

func benchService(b *testing.B) (*Service, context.Context) {
	users := account.NewBook("", false)
	u, err := users.Lookup("")
	if err != nil {
		b.Fatal(err)
	}
	p := process.New(process.Options{WorkDir: b.TempDir()})
	s := New(Options{Process: p, Users: users})
	b.Cleanup(func() {
		p.Shutdown(context.Background())
		s.Close()
	})
	return s, account.NewContext(b.Context(), u)
}
