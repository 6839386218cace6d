//go:build linux

package server

import (
	"os/exec"
	"testing"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// BenchmarkCommand compares a command through the server with the same program
// started directly, in turns, so that both meet the same machine. The metric
// ratio is what the server costs: 1 would be nothing.
func BenchmarkCommand(b *testing.B) {
	r := newRig(b, nil)
	direct, served := time.Duration(0), time.Duration(0)
	stdin := false
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if _, err := r.run(b.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/true"}, Stdin: &stdin}); err != nil {
			b.Fatal(err)
		}
		direct += middle.Sub(began)
		served += time.Since(middle)
	}
	b.ReportMetric(float64(served)/float64(direct), "ratio")
	b.ReportMetric(float64(direct.Microseconds())/float64(b.N), "µs/direct")
	b.ReportMetric(float64(served.Microseconds())/float64(b.N), "µs/served")
}
