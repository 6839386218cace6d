package sandboxfn

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// CreateOptions say what to create. The zero value asks for defaults.
type CreateOptions struct {
	Provider string // default: the client's
	Template string // recipe; default: the client's, else the provider's
	Image    string // OCI reference in place of a template; [ErrNotSupported] where the provider takes none

	// Snapshot is the id of a snapshot to start from, see [Sandbox.Snapshot], in
	// place of a template or an image.
	Snapshot string

	// Lifetime is when the sandbox ends, from now, unless [Sandbox.SetLifetime]
	// moves it. Zero: the client's, else the provider's default. Negative, or
	// outside the provider's bounds: [ErrOption], never a silent correction.
	Lifetime time.Duration

	// Detached lets the sandbox live on when this process ends; otherwise it
	// ends with it. Providers in the cloud always detach.
	Detached bool

	Env      map[string]string // for everything started inside; a command's own Env wins
	Metadata map[string]string // kept with the sandbox and visible in lists

	CPU          float64 // processors; zero: the provider's default
	Memory, Disk Bytes   // zero: the provider's default
	Processes    int     // at once; zero: the provider's default
	GPU          string  // "TYPE" or "TYPE:N"; [ErrNotSupported] where the provider has none

	// DiskRead and DiskWrite limit what is read from and written to disks, per
	// second. Zero: no limit. [ErrNotSupported] where the provider has no such
	// limits.
	DiskRead, DiskWrite Bytes

	// Scratch is where written files are kept: "memory" or "disk". On disk the
	// limit Disk may be enforced late, see Report. Empty: the
	// provider's default (local: memory).
	Scratch string

	// RootDir is a directory of this machine that is the file tree of the
	// sandbox, read-only, in place of the template's. Expose are files and
	// directories of this machine that are seen read-only at the same places.
	// WritableRoot lets the whole tree be written; it ends with the sandbox. Only
	// provider local has these, others say [ErrNotSupported].
	RootDir      string
	Expose       []string
	WritableRoot bool

	// Isolation is what must stand between the sandbox and its host: "container"
	// or "gvisor". Empty: the provider's default. One that cannot be proven is
	// refused, never replaced.
	Isolation string

	// AllowDebug lets processes inside trace each other, as debuggers do.
	AllowDebug bool

	// Volumes are storage that outlives the sandbox, each in a directory of its
	// own. One that is not there yet is made, empty. Several sandboxes may have one
	// at once. [ErrNotSupported] where the provider has none.
	Volumes []Volume

	// Network is "none", "loopback", "host" or "all", or a comma-separated list
	// of what may be reached: host[:port], *.suffix[:port], CIDR[:port]. Empty:
	// the provider's default.
	Network string

	// Require names protections, as in [Report], that must be in force:
	// otherwise [ErrRequire], and nothing runs.
	Require []string

	User    string // default user of commands and files; empty: the provider's
	WorkDir string // default directory of commands; empty: the user's home

	// RequestID is the identity of this creation: a repetition with the same one
	// and the same options finds the sandbox instead of making a second. Letters,
	// digits, '-' and '_', at most 64. Empty: a random one.
	RequestID string

	Logger *slog.Logger // nil: the client's
}

// request validates o against what the provider can do and turns it into what
// providers take. It has no side effect.
func (o *CreateOptions) request(c *Client, caps providers.Capabilities, provider string) (providers.CreateRequest, error) {
	var v CreateOptions
	if o != nil {
		v = *o
	}
	check := optionCheck{op: "create sandbox"}
	check.onlyOne(v)
	if v.Template == "" && v.Image == "" && v.Snapshot == "" {
		v.Template = c.opts.Template
	}
	if v.Lifetime == 0 {
		v.Lifetime = c.opts.Lifetime
	}
	check.lifetime(v.Lifetime, caps.Lifetime, provider)
	check.text("Template", v.Template)
	check.text("User", v.User)
	check.text("WorkDir", v.WorkDir)
	if v.WorkDir != "" && !path.IsAbs(v.WorkDir) {
		check.fail("WorkDir " + quoted(v.WorkDir) + " is not absolute")
	}
	check.env(v.Env)
	for k := range v.Env {
		if strings.HasPrefix(k, "SANDBOX_WORKER") || k == "SANDBOX_NSINIT" {
			check.fail("Env: " + k + " is reserved")
		}
	}
	for k, val := range v.Metadata {
		if k == "" {
			check.fail("Metadata: a key is empty")
		}
		check.text("Metadata key", k)
		check.text("Metadata "+k, val)
	}
	check.resources(v)
	check.text("Image", v.Image)
	check.text("Snapshot", v.Snapshot)
	check.root(v)
	v.Isolation = check.leastIsolation(v.Isolation, c.cfg.Text("isolation"), caps, provider)
	if !isGPU(v.GPU) {
		check.fail("GPU " + quoted(v.GPU) + " is not TYPE or TYPE:COUNT")
	}
	checkVolumes(v.Volumes, func(format string, args ...any) error {
		check.fail(fmt.Sprintf(format, args...))
		return nil
	})
	net, err := parseNetwork(v.Network)
	if err != "" {
		check.fail("Network " + quoted(v.Network) + ": " + err)
	}
	if net != nil && len(caps.Networks) > 0 && !slices.Contains(caps.Networks, net.Mode) {
		check.fail(fmt.Sprintf("Network %s is not offered by provider %s; it offers %s", quoted(v.Network), provider, strings.Join(caps.Networks, ", ")))
	}
	check.requestID(v.RequestID)
	for _, r := range v.Require {
		if r == "" {
			check.fail("Require: a name is empty")
		}
	}
	if check.problem != "" {
		return providers.CreateRequest{}, &Error{Code: "E2011", Op: check.op, Message: check.problem, Suggestion: check.suggestion}
	}
	for _, want := range []struct {
		asked      bool
		cap        providers.Capability
		what, hint string
	}{
		{len(v.Volumes) > 0, providers.CapVolumes, "volumes", "leave Volumes empty, or name a provider that has them"},
		{v.Image != "", providers.CapImages, "images", "leave Image empty, or name a provider that makes sandboxes from images"},
		{v.GPU != "", providers.CapGPU, "GPUs", "leave GPU empty, or name a provider that has them"},
		{v.Snapshot != "", providers.CapSnapshot, "snapshots", "leave Snapshot empty, or name a provider that has them"},
		{v.RootDir != "" || len(v.Expose) > 0 || v.WritableRoot, providers.CapRootView, "a file tree of this machine",
			"leave RootDir, Expose and WritableRoot empty, or use provider local"},
		{v.DiskRead > 0 || v.DiskWrite > 0, providers.CapDiskRate, "limits of disk rates", "leave DiskRead and DiskWrite empty"},
		{v.AllowDebug, providers.CapDebug, "the switch AllowDebug", "leave it off"},
		{v.Isolation != "", providers.CapContainer, "a choice of the isolation", "leave Isolation empty"},
		{v.Scratch == "disk", providers.CapRootView, "a choice of where files are kept", "leave Scratch empty"},
	} {
		if want.asked && want.cap == providers.CapImages && provider == "local" {
			want.hint = "import _ \"github.com/agent-sandbox/sandbox-go/providers/local/image\" in the program, or leave Image empty"
		}
		if want.asked && !caps.Set[want.cap] {
			return providers.CreateRequest{}, lacking(check.op, provider, want.what, want.hint)
		}
	}
	newID := v.RequestID == ""
	if newID {
		v.RequestID = randomID()
	}
	return providers.CreateRequest{
		RequestID: v.RequestID, NewID: newID, Template: v.Template, Image: v.Image, Lifetime: v.Lifetime, Detached: v.Detached,
		Env: maps.Clone(v.Env), Metadata: maps.Clone(v.Metadata),
		Resources: providers.Resources{
			CPUMilli:  int64(math.Ceil(v.CPU * 1000)),
			MemoryMiB: int64((v.Memory + MiB - 1) / MiB),
			DiskMiB:   int64((v.Disk + MiB - 1) / MiB),
			Processes: int64(v.Processes), GPU: v.GPU,
			DiskRead: int64(v.DiskRead), DiskWrite: int64(v.DiskWrite),
		},
		Snapshot: v.Snapshot, Scratch: v.Scratch, Isolation: v.Isolation, Debug: v.AllowDebug,
		Root:    providers.RootView{Dir: v.RootDir, Expose: slices.Clone(v.Expose), Writable: v.WritableRoot},
		Volumes: volumeRequest(v.Volumes),
		Network: net, Require: slices.Clone(v.Require), User: v.User, WorkDir: v.WorkDir,
	}, nil
}

// optionCheck remembers the first problem of a set of options.
type optionCheck struct {
	op, problem, suggestion string
}

func (c *optionCheck) fail(problem string) {
	if c.problem == "" {
		c.problem = problem
	}
}

// text refuses what no system call and no wire can carry.
func (c *optionCheck) text(name, v string) {
	switch {
	case strings.ContainsRune(v, 0):
		c.fail(name + " holds a NUL byte")
	case !utf8.ValidString(v):
		c.fail(name + " is not valid UTF-8")
	}
}

// onlyOne refuses more than one beginning of a sandbox.
func (c *optionCheck) onlyOne(v CreateOptions) {
	var set []string
	for _, o := range []struct{ name, value string }{
		{"Template", v.Template}, {"Image", v.Image}, {"Snapshot", v.Snapshot}, {"RootDir", v.RootDir},
	} {
		if o.value != "" {
			set = append(set, o.name)
		}
	}
	if len(set) > 1 {
		c.fail(strings.Join(set, " and ") + " exclude each other")
	}
}

// isolations are what can stand between a sandbox and its host, the weakest first.
var isolations = []string{"", "container", "gvisor", "microvm"}

// leastIsolation is what to ask a provider for, so that it is neither less than
// what was asked for nor than the setting.
func (c *optionCheck) leastIsolation(asked, least string, caps providers.Capabilities, provider string) string {
	if slices.Index(isolations, asked) >= slices.Index(isolations, least) {
		return asked
	}
	switch {
	case caps.Set[providers.CapContainer]:
		return least
	case least == "container":
		return asked // no provider isolates less
	}
	c.fail("the setting isolation asks for " + least + ", and provider " + provider + " does not say what stands between its sandboxes and their host")
	c.suggestion = "name another provider, or unset SANDBOX_ISOLATION"
	return asked
}

// root checks what concerns the file tree and the isolation.
func (c *optionCheck) root(v CreateOptions) {
	if v.RootDir != "" && !path.IsAbs(v.RootDir) {
		c.fail("RootDir " + quoted(v.RootDir) + " is not absolute")
	}
	c.text("RootDir", v.RootDir)
	for _, e := range v.Expose {
		if !path.IsAbs(e) {
			c.fail("Expose " + quoted(e) + " is not absolute")
		}
		c.text("Expose", e)
	}
	if !slices.Contains([]string{"", "memory", "disk"}, v.Scratch) {
		c.fail("Scratch " + quoted(v.Scratch) + ` is neither "memory" nor "disk"`)
	}
	if !slices.Contains([]string{"", "container", "gvisor"}, v.Isolation) {
		c.fail("Isolation " + quoted(v.Isolation) + ` is neither "container" nor "gvisor"`)
	}
}

func (c *optionCheck) env(env map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if k == "" || strings.Contains(k, "=") {
			c.fail("Env: " + quoted(k) + " is not a name of a variable")
		}
		c.text("Env: the name of a variable", k)
		c.text("Env: "+k, env[k])
	}
}

func (c *optionCheck) lifetime(d time.Duration, r providers.LifetimeRange, provider string) {
	switch {
	case d < 0:
		c.fail("Lifetime " + d.String() + " is negative; zero means the default")
	case d == 0:
	case r.Max > 0 && d > r.Max:
		c.fail("Lifetime " + d.String() + " is above the maximum " + r.Max.String() + " of provider " + provider)
		c.suggestion = "ask for " + r.Max.String() + " and move the end later with SetLifetime"
	case d < r.Min:
		c.fail("Lifetime " + d.String() + " is below the minimum " + r.Min.String() + " of provider " + provider)
	}
}

func (c *optionCheck) resources(v CreateOptions) {
	if v.CPU < 0 || math.IsNaN(v.CPU) || v.CPU > 4096 {
		c.fail(fmt.Sprintf("CPU %v is not a number of processors", v.CPU))
	}
	for _, size := range []struct {
		name  string
		value Bytes
	}{{"Memory", v.Memory}, {"Disk", v.Disk}, {"DiskRead", v.DiskRead}, {"DiskWrite", v.DiskWrite}} {
		switch {
		case size.value < 0:
			c.fail(size.name + " " + size.value.String() + " is negative")
		case 0 < size.value && size.value < MiB:
			c.fail(fmt.Sprintf("%s %v is less than 1MiB; did you mean %d*sandboxfn.MiB?", size.name, size.value, int64(size.value)))
		}
	}
	if v.Processes < 0 {
		c.fail(fmt.Sprintf("Processes %d is negative", v.Processes))
	}
}

func (c *optionCheck) requestID(id string) {
	if len(id) > 64 {
		c.fail("RequestID is longer than 64 bytes")
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			c.fail("RequestID " + quoted(id) + " holds something else than letters, digits, '-' and '_'")
			return
		}
	}
}

// parseNetwork reads a mode or a list. The second result says what is wrong.
func parseNetwork(s string) (*providers.NetworkPolicy, string) {
	modes := []string{"none", "loopback", "host", "all"}
	if s = strings.TrimSpace(s); s == "" {
		return nil, ""
	}
	if slices.Contains(modes, s) {
		return &providers.NetworkPolicy{Mode: s}, ""
	}
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		switch {
		case item == "":
			return nil, "an entry of the list is empty"
		case slices.Contains(modes, item):
			return nil, item + " cannot be part of a list"
		case !strings.ContainsAny(item, ".:") && item != "localhost":
			return nil, quoted(item) + " is neither a mode (none, loopback, host, all) nor an address; a host of this name is written with a dot at its end"
		}
		items = append(items, item)
	}
	rules, err := netrule.ParseList(items)
	if err != nil {
		return nil, err.Error()
	}
	p := &providers.NetworkPolicy{Mode: "list"}
	for _, r := range rules {
		p.Allow = append(p.Allow, r.String())
	}
	return p, ""
}

// quoted shows foreign text in a message, bounded.
func quoted(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return fmt.Sprintf("%q", s)
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
