//go:build linux

package local

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

// insideMetrics measures the sandbox for the runtime's own answer to GET
// /metrics, against the limits that it was made with. The cache is not to be
// seen from inside.
func insideMetrics(conf serveConfig, meter *usageMeter) func() server.Usage {
	return func() server.Usage {
		in := meter.take()
		u := server.Usage{
			CPUs: float64(conf.CPUMilli) / 1000, MemoryUsed: in.Memory, MemoryTotal: conf.Memory,
			DiskUsed: in.DiskUsed, DiskTotal: in.DiskTotal,
		}
		if u.CPUs == 0 {
			u.CPUs = float64(runtime.NumCPU())
		}
		u.CPUPercent = min(100, in.CPUPercent/u.CPUs)
		var machine unix.Sysinfo_t
		if u.MemoryTotal == 0 && unix.Sysinfo(&machine) == nil {
			u.MemoryTotal = int64(machine.Totalram) * int64(machine.Unit)
		}
		return u
	}
}
