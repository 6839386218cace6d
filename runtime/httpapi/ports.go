//go:build linux

package httpapi

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
)

// Port is one that something listens on.
type Port struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol" enum:"tcp,tcp6"`
	Address  string `json:"address"`
	Pid      *int   `json:"pid" doc:"null where it cannot be seen"`
}

// Ports is the answer of GET /ports.
type Ports struct {
	Listening []Port `json:"listening"`
}

func (a *API) ports(w http.ResponseWriter, _ *http.Request) {
	endpoint.Answer(w, Ports{listening("/proc")})
}

// listening reads which ports something listens on, proc_net(5).
func listening(proc string) []Port {
	out := []Port{}
	inodes := map[string][]int{} // of sockets, to the ports in out
	for _, protocol := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "net", protocol))
		if err != nil {
			continue // a kernel without it has no such ports
		}
		lines := bufio.NewScanner(io.LimitReader(f, 16<<20))
		for lines.Scan() {
			// sl local_address rem_address st … inode; 0A is TCP_LISTEN.
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != "0A" {
				continue
			}
			if at, ok := socketAddress(fields[1]); ok {
				inodes[fields[9]] = append(inodes[fields[9]], len(out))
				out = append(out, Port{Port: int(at.Port()), Protocol: protocol, Address: at.Addr().String()})
			}
		}
		f.Close()
	}
	owners(proc, func(inode string, pid int) {
		for _, i := range inodes[inode] {
			if out[i].Pid == nil || *out[i].Pid > pid {
				out[i].Pid = &pid
			}
		}
	})
	slices.SortFunc(out, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address))
	})
	return slices.CompactFunc(out, func(a, b Port) bool {
		return a.Port == b.Port && a.Protocol == b.Protocol && a.Address == b.Address
	})
}

// socketAddress reads "0100007F:1F90": words of the address in the order of the
// machine, which is little-endian wherever this runs, and the port.
func socketAddress(s string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr, uint16(n)), ok
}

// owners calls fn for each socket that each process has, as far as they can be
// seen.
func owners(proc string, fn func(inode string, pid int)) {
	pids, err := os.ReadDir(proc)
	if err != nil {
		return
	}
	for _, p := range pids {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, p.Name(), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // of somebody else, or gone
		}
		for _, fd := range fds {
			link, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if inode, ok := strings.CutPrefix(link, "socket:["); err == nil && ok {
				fn(strings.TrimSuffix(inode, "]"), pid)
			}
		}
	}
}
