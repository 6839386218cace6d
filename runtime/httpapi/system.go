//go:build linux

package httpapi

import (
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
)

func (a *API) systemRows() []endpoint.Endpoint {
	return []endpoint.Endpoint{
		{
			Name: "system.info", Method: http.MethodGet, Path: "/system/info",
			Summary:  "What the sandbox runs on.",
			Response: SystemInfo{}, Handle: a.systemInfo,
		},
		{
			Name: "system.metrics", Method: http.MethodGet, Path: "/system/metrics",
			Summary:  "What the sandbox uses.",
			Response: SystemMetrics{}, Handle: a.systemMetrics,
		},
		{
			Name: "system.env_read", Method: http.MethodGet, Path: "/env",
			Summary:  "The variables of the sandbox, without secrets.",
			Query:    []endpoint.Param{{Name: "filter", Type: "string", Summary: "names, with commas"}},
			Response: Environ{}, Handle: a.readEnv,
		},
		{
			Name: "system.env_write", Method: http.MethodPost, Path: "/env",
			Summary: "Set variables of what is started from now on.",
			Request: EnvRequest{}, Response: EnvUpdated{}, Handle: a.writeEnv,
			Errors: []endpoint.Error{{Status: 403, Code: "E3011", Summary: "a variable that is protected; nothing is set"}},
		},
		{
			Name: "system.ports", Method: http.MethodGet, Path: "/ports",
			Summary: "The TCP ports that something listens on; of UDP nothing is told.", Response: Ports{}, Handle: a.ports,
		},
		{
			Name: "system.packages", Method: http.MethodGet, Path: "/packages",
			Summary:  "What a package manager has installed.",
			Query:    []endpoint.Param{{Name: "manager", Type: "string", Required: true, Summary: "pip or npm"}},
			Response: Packages{}, Handle: a.packages,
			Errors: []endpoint.Error{
				{Status: 404, Code: "E3007", Summary: "the sandbox does not have it"},
				{Status: 408, Code: "E3001", Summary: "it took more than 10 s"}, {Status: 502, Code: "E3002", Summary: "it failed"},
			},
		},
	}
}

// SystemInfo is the answer of GET /system/info. Sizes are in units of 1024.
type SystemInfo struct {
	OS                string  `json:"os"`
	Kernel            string  `json:"kernel"`
	Arch              string  `json:"arch"`
	CPUCount          int     `json:"cpu_count" doc:"rounded up"`
	MemoryTotalMB     int64   `json:"memory_total_mb"`
	MemoryAvailableMB int64   `json:"memory_available_mb"`
	DiskTotalGB       float64 `json:"disk_total_gb"`
	DiskFreeGB        float64 `json:"disk_free_gb"`
	Hostname          string  `json:"hostname"`
}

func (a *API) systemInfo(w http.ResponseWriter, _ *http.Request) {
	u := a.opts.Usage()
	host, _ := os.Hostname() // without one it is empty
	var name unix.Utsname
	_ = unix.Uname(&name) // cannot fail on memory of ours
	endpoint.Answer(w, SystemInfo{
		OS: runtime.GOOS, Kernel: unix.ByteSliceToString(name.Release[:]), Arch: runtime.GOARCH,
		CPUCount:      max(1, int(math.Ceil(u.CPUs))),
		MemoryTotalMB: u.MemoryTotal >> 20, MemoryAvailableMB: max(0, u.MemoryTotal-u.MemoryUsed) >> 20,
		DiskTotalGB: gigabytes(u.DiskTotal), DiskFreeGB: gigabytes(max(0, u.DiskTotal-u.DiskUsed)),
		Hostname: host,
	})
}

// SystemMetrics is the answer of GET /system/metrics. Sizes are in units of 1024.
type SystemMetrics struct {
	CPULoad1m     float64 `json:"cpu_load_1m" doc:"processes that ran or wanted to, of the machine"`
	CPULoad5m     float64 `json:"cpu_load_5m"`
	CPULoad15m    float64 `json:"cpu_load_15m"`
	CPUPercent    float64 `json:"cpu_percent" doc:"of all processors together, since the measurement before"`
	MemoryUsedMB  int64   `json:"memory_used_mb"`
	MemoryTotalMB int64   `json:"memory_total_mb"`
	MemoryPercent float64 `json:"memory_percent"`
	DiskUsedGB    float64 `json:"disk_used_gb"`
	DiskTotalGB   float64 `json:"disk_total_gb"`
	DiskPercent   float64 `json:"disk_percent"`
	UptimeSeconds float64 `json:"uptime_seconds" doc:"of the kernel that is to be seen"`
}

func (a *API) systemMetrics(w http.ResponseWriter, _ *http.Request) {
	u := a.opts.Usage()
	m := SystemMetrics{
		CPUPercent: hundredths(u.CPUPercent), MemoryUsedMB: u.MemoryUsed >> 20, MemoryTotalMB: u.MemoryTotal >> 20,
		MemoryPercent: percent(u.MemoryUsed, u.MemoryTotal), DiskPercent: percent(u.DiskUsed, u.DiskTotal),
		DiskUsedGB: gigabytes(u.DiskUsed), DiskTotalGB: gigabytes(u.DiskTotal),
	}
	loads := numbers("/proc/loadavg", 3)
	m.CPULoad1m, m.CPULoad5m, m.CPULoad15m = loads[0], loads[1], loads[2]
	m.UptimeSeconds = numbers("/proc/uptime", 1)[0]
	endpoint.Answer(w, m)
}

// numbers are the first n of a file; those that are not there are 0.
func numbers(file string, n int) []float64 {
	out := make([]float64, n)
	data, err := os.ReadFile(file)
	if err != nil {
		return out
	}
	for i, f := range strings.Fields(string(data)) {
		if i < n {
			out[i], _ = strconv.ParseFloat(f, 64)
		}
	}
	return out
}

func gigabytes(n int64) float64 { return hundredths(float64(n) / (1 << 30)) }

func percent(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return hundredths(100 * float64(part) / float64(whole))
}

func hundredths(f float64) float64 { return math.Round(100*f) / 100 }
