//go:build linux

package local

import (
	"encoding/json"
	"os"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// What runsc reads of a bundle, in the words of the OCI runtime specification.
type (
	ociSpec struct {
		Version  string     `json:"ociVersion"`
		Process  ociProcess `json:"process"`
		Root     ociRoot    `json:"root"`
		Hostname string     `json:"hostname"`
		Mounts   []ociMount `json:"mounts"`
		Linux    ociLinux   `json:"linux"`
	}
	ociProcess struct {
		User            struct{}            `json:"user"` // root of the guest
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
		Rlimits         []ociRlimit         `json:"rlimits"`
		OOMScoreAdj     int                 `json:"oomScoreAdj"`
	}
	ociRlimit struct {
		Type string `json:"type"`
		Soft uint64 `json:"soft"`
		Hard uint64 `json:"hard"`
	}
	ociRoot struct {
		Path     string `json:"path"`
		ReadOnly bool   `json:"readonly"`
	}
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options"`
	}
	ociLinux struct {
		Namespaces []ociNamespace `json:"namespaces"`
	}
	ociNamespace struct {
		Type string `json:"type"`
	}
)

// guestBundle is the bundle of a guest. Its processes have no capabilities in
// the end: see planGuest.
func guestBundle(conf *gvisorConfig) *ociSpec {
	caps := guestCaps()
	if conf.Links {
		caps = append(caps, "CAP_NET_ADMIN") // for addresses
	}
	s := &ociSpec{
		Version: "1.0.0",
		Process: ociProcess{
			Args: []string{"sandbox-init"}, Cwd: "/",
			Env:          []string{nsinit.EnvSocket + "=3", "GOMAXPROCS=1"},
			Capabilities: map[string][]string{"bounding": caps, "effective": caps, "permitted": caps},
			// Which runsc needs to hear, though its guests never gain privileges.
			NoNewPrivileges: true,
			OOMScoreAdj:     commandOOMScore, // the guest dies before init
			// Those of planner.limits, of which gVisor sets most at the start only.
			Rlimits: []ociRlimit{
				{"RLIMIT_CORE", 0, 0}, {"RLIMIT_NOFILE", 1024, 65536}, {"RLIMIT_MEMLOCK", 8 << 20, 8 << 20}, {"RLIMIT_MSGQUEUE", 800 << 10, 800 << 10},
				{"RLIMIT_SIGPENDING", 4096, 4096}, {"RLIMIT_RTPRIO", 0, 0}, {"RLIMIT_NICE", 0, 0},
			},
		},
		Root:     ociRoot{"/" + guestRoot, true},
		Hostname: hostName,
		Mounts: []ociMount{
			{"/proc", "proc", "proc", nil}, {"/sys", "sysfs", "sysfs", []string{"ro"}}, {"/dev", "tmpfs", "dev", nil},
			// Else runsc makes one that takes all the memory there is. It is covered.
			{"/tmp", "tmpfs", "tmp", []string{"size=4k", "nosuid", "nodev"}},
		},
	}
	if n := uint64(conf.FileSize); n > 0 {
		s.Process.Rlimits = append(s.Process.Rlimits, ociRlimit{"RLIMIT_FSIZE", n, n})
	}
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount"} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, ociNamespace{kind})
	}
	for _, m := range conf.Mounts {
		o := []string{"rbind", "rw", "nosuid", "nodev"}
		if m.ReadOnly {
			o[1] = "ro"
		}
		s.Mounts = append(s.Mounts, ociMount{"/" + guestStage + "/" + m.Name, "bind", "/" + guestMounts + "/" + m.Name, o})
	}
	return s
}

// writeBundle writes a bundle for runsc.
func writeBundle(dir string, conf *gvisorConfig) error {
	b, err := json.Marshal(guestBundle(conf))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(dir+"/config.json", b, 0o600)
}
