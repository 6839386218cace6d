//go:build linux

package code

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// median sorts all and returns the one in the middle.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2])
}

// bare starts the interpreter for nothing but a cell.
func bare(b *testing.B, code string) time.Duration {
	b.Helper()
	t0 := time.Now()
	if err := exec.Command("/usr/bin/python3", "-c", code).Run(); err != nil {
		b.Skip(err)
	}
	return time.Since(t0)
}

// BenchmarkReady makes and removes contexts; ×bare is the median against that of
// starting the bare interpreter in the same run. It should be below 3.
func BenchmarkReady(b *testing.B) {
	s, ctx := benchService(b)
	var ready, starts []time.Duration
	for b.Loop() {
		t0 := time.Now()
		c, err := s.Create(ctx, "python", "")
		if err != nil {
			b.Fatal(err)
		}
		ready = append(ready, time.Since(t0))
		starts = append(starts, bare(b, "pass"))
		if err := s.Remove(c.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(median(ready)/median(starts), "×bare")
}

// BenchmarkPrestart runs the first cell of a sandbox whose template has started the
// interpreter; ×cold is the median against that of one where the cell has to, in the
// same run. It should be far below 1.
func BenchmarkPrestart(b *testing.B) {
	first := func(in model.Interpreter) time.Duration {
		s, ctx, end := service(b, in)
		defer end()
		s.Prestart()
		for range in.Prestart { // there is one
			for len(s.List()) == 0 || !s.List()[0].running() {
				time.Sleep(time.Millisecond)
			}
		}
		t0 := time.Now()
		if err := s.Execute(ctx, &Cell{Code: "1 + 1"}, func(*Event) error { return nil }); err != nil {
			b.Fatal(err)
		}
		return time.Since(t0)
	}
	var warm, cold []time.Duration
	for b.Loop() {
		cold = append(cold, first(model.Interpreter{}))
		warm = append(warm, first(model.Interpreter{Prestart: []string{"python"}}))
	}
	b.ReportMetric(median(warm)/median(cold), "×cold")
}

// BenchmarkCell runs small cells; ×bare is the median against that of starting an
// interpreter for each of them.
func BenchmarkCell(b *testing.B) {
	s, ctx := benchService(b)
	none := func(*Event) error { return nil }
	var starts, cells []time.Duration
	for range 9 {
		starts = append(starts, bare(b, "x = 1; x + 1"))
	}
	cell := &Cell{Code: "x = 1; x + 1"}
	if err := s.Execute(ctx, cell, none); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		t0 := time.Now()
		if err := s.Execute(ctx, cell, none); err != nil {
			b.Fatal(err)
		}
		cells = append(cells, time.Since(t0))
	}
	b.ReportMetric(median(cells)/median(starts), "×bare")
}

func benchService(b *testing.B) (*Service, context.Context) {
	s, ctx, end := service(b, model.Interpreter{})
	b.Cleanup(end)
	return s, ctx
}

func service(b *testing.B, in model.Interpreter) (s *Service, ctx context.Context, end func()) {
	users := account.NewBook("", false)
	u, err := users.Lookup("")
	if err != nil {
		b.Fatal(err)
	}
	p := process.New(process.Options{WorkDir: b.TempDir()})
	s = New(Options{Process: p, Users: users, Interpreter: in})
	return s, account.NewContext(b.Context(), u), func() {
		p.Shutdown(context.Background())
		s.Close()
	}
}
