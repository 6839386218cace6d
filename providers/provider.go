package providers

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// A Provider creates and finds sandboxes on one backend. It is safe for
// concurrent use, obeys the context of every call and returns errors of
// package errdefs.
type Provider interface {
	// Name is the name under which the provider is registered.
	Name() string

	// Capabilities says what the provider can do. It makes no request.
	Capabilities(ctx context.Context) (Capabilities, error)

	// Create starts a sandbox and returns once its data plane answers. When it
	// fails, or ctx ends first, nothing is left behind.
	Create(ctx context.Context, req CreateRequest) (*Sandbox, error)

	// Get describes one sandbox. An id that is not there is E2020; one whose end
	// is on record is E2021, E2022 or E2023.
	Get(ctx context.Context, id string) (*Sandbox, error)

	// List returns one page, newest first.
	List(ctx context.Context, req ListRequest) (*Page, error)

	// Connect returns the sandbox with an endpoint to use; it resumes a paused
	// one. A Lifetime above what remains extends it, never shortens it.
	Connect(ctx context.Context, id string, req ConnectRequest) (*Sandbox, error)

	// SetLifetime moves the end to d from now. It may shorten.
	SetLifetime(ctx context.Context, id string, d time.Duration) (*Sandbox, error)

	// Kill stops the sandbox. An id that is not there, or not any more, is
	// E2020; sandboxfn takes that as done.
	Kill(ctx context.Context, id string) error

	// Close releases what the provider holds in this process. Sandboxes that
	// were created attached end with it; others live on. It is idempotent.
	Close() error
}

// Reporter is implemented by providers that can say how a sandbox is isolated.
type Reporter interface {
	Report(ctx context.Context, id string) (*Report, error)
}

// Pauser is implemented by providers with CapPause.
type Pauser interface {
	// Pause stops everything inside and keeps it. A sandbox that is paused
	// already is E2024.
	Pause(ctx context.Context, id string) error

	// Resume lets a paused sandbox go on, with the end moved as Connect does. One
	// that runs is returned as it is.
	Resume(ctx context.Context, id string, req ConnectRequest) (*Sandbox, error)
}

// PortExposer is implemented by providers with CapPorts.
type PortExposer interface {
	// Port says how to reach what listens on a TCP port inside, whether or not
	// anything does yet. An endpoint with Dial gives the raw connection; one
	// without carries HTTP and WebSocket only.
	Port(ctx context.Context, id string, port int) (Endpoint, error)
}

// Meter is implemented by providers with CapMetrics.
type Meter interface {
	Usage(ctx context.Context, id string) (Usage, error)
}

// Usage is what a sandbox takes at one moment. Sizes are in bytes; a total of
// zero is unknown or not limited.
type Usage struct {
	At          time.Time
	CPUs        float64 // it may use
	CPUPercent  float64 // of one processor, since the sample before or since its start
	MemoryUsed  int64
	MemoryCache int64
	MemoryTotal int64
	DiskUsed    int64
	DiskTotal   int64
}

// Snapshotter is implemented by providers with CapSnapshot. A snapshot holds the
// files of a sandbox, and what else the provider says.
type Snapshotter interface {
	// Snapshot keeps what the sandbox is now. The sandbox goes on.
	Snapshot(ctx context.Context, id string, req SnapshotRequest) (*Snapshot, error)

	// ListSnapshots returns one page, newest first.
	ListSnapshots(ctx context.Context, req SnapshotListRequest) (*SnapshotPage, error)

	// DeleteSnapshot removes a snapshot. Sandboxes made from it live on. An id
	// that is not there is E2020.
	DeleteSnapshot(ctx context.Context, id string) error
}

// SnapshotRequest says what to keep with a snapshot.
type SnapshotRequest struct {
	Name     string // for people; empty: none
	Metadata map[string]string
}

// Snapshot describes a snapshot.
type Snapshot struct {
	ID, Name, SandboxID string
	CreatedAt           time.Time
	Size                int64 // bytes that it takes by itself; zero: unknown
	Metadata            map[string]string
}

// SnapshotListRequest selects snapshots.
type SnapshotListRequest struct {
	SandboxID string // empty: of every sandbox
	Limit     int    // per page; zero: 100
	Token     string // of the next page, from SnapshotPage.Next
}

// SnapshotPage is one page of a list.
type SnapshotPage struct {
	Snapshots []*Snapshot
	Next      string // empty: the last page
}

// Hibernator is implemented by providers with CapHibernate.
type Hibernator interface {
	// Hibernate ends every process of the sandbox and keeps its files. Then its
	// state is StateStopped; Connect starts it again under the same id, with the
	// settings and the token it was created with.
	Hibernate(ctx context.Context, id string) error
}

// Auditor is implemented by providers with CapNetworkLog.
type Auditor interface {
	// NetworkLog returns what the network policy of a sandbox allowed and
	// refused, oldest first, as far as it is kept.
	NetworkLog(ctx context.Context, id string) ([]NetworkEvent, error)
}

// NetworkEvent is one decision of a network policy.
type NetworkEvent struct {
	At      time.Time `json:"at"`
	Allowed bool      `json:"allowed"`
	Kind    string    `json:"kind"`              // "dns", "connect", "proxy", …
	Host    string    `json:"host"`              // as asked for: a name or an address
	Port    int       `json:"port,omitempty"`    // zero: of no one port
	Address string    `json:"address,omitempty"` // that was connected to
	Rule    string    `json:"rule,omitempty"`    // that allowed it
	Reason  string    `json:"reason,omitempty"`  // why it was refused
}

// Doctor is implemented by providers that can say what this machine lets them do.
type Doctor interface {
	Diagnose(ctx context.Context) []Finding
}

// Collector is implemented by providers that keep things on this machine which
// outlive what they were for.
type Collector interface {
	// GC removes what dead sandboxes left behind, and what was not used for long
	// and can be had again. Nothing that a living sandbox has is touched.
	GC(ctx context.Context) error

	// Collect is GC, and says what was removed meanwhile, also of what else ended in
	// this process. After an error it says what was removed before.
	Collect(ctx context.Context) ([]Removed, error)
}

// Removed is something that [Collector] has removed.
type Removed struct {
	Kind RemovedKind `json:"kind"`
	ID   string      `json:"id"` // of a sandbox or snapshot, a digest, or the name of a file
}

// RemovedKind says what was removed.
type RemovedKind string

// The kinds of what is removed.
const (
	RemovedSandbox    RemovedKind = "sandbox"     // what a dead one left
	RemovedSnapshot   RemovedKind = "snapshot"    // half of one, whose process was killed
	RemovedLayer      RemovedKind = "layer"       // files of templates and snapshots that nobody needs
	RemovedImage      RemovedKind = "image"       // not used for long
	RemovedImageLayer RemovedKind = "image-layer" // as well
	RemovedExecutable RemovedKind = "executable"  // not used for long
	RemovedIDs        RemovedKind = "ids"         // a block of user ids that was reserved
)

// Finding is one result of a check of this machine.
type Finding struct {
	What   string       `json:"what"` // as in Report: "memory", "network", "gvisor", …
	Level  FindingLevel `json:"level"`
	Detail string       `json:"detail"`           // what was found
	Remedy string       `json:"remedy,omitempty"` // what would change it
}

// FindingLevel says how bad a finding is.
type FindingLevel string

const (
	FindingOK       FindingLevel = "ok"
	FindingInfo     FindingLevel = "info"     // something optional is absent
	FindingDegraded FindingLevel = "degraded" // a protection cannot be enforced
	FindingFailed   FindingLevel = "failed"   // no sandbox can be made
)

// ArtifactStore is implemented by providers on this machine that can make a
// file of the host readable and executable inside a sandbox without sending it.
type ArtifactStore interface {
	// HostArtifacts reports whether Create honours CreateRequest.Artifacts.
	HostArtifacts() bool
}

// CreateRequest says what to create. The zero value asks for the provider's
// defaults.
type CreateRequest struct {
	RequestID string            // identity for at-most-once creation; the client always sets it
	NewID     bool              // RequestID was made for this request: there is nothing of it to look for
	Template  string            // name, alias or id; empty: the provider's default
	Image     string            // OCI reference, only with CapImages; then Template is empty
	Snapshot  string            // id to start from, only with CapSnapshot; then Template and Image are empty
	Lifetime  time.Duration     // from now; zero: the provider's default
	Detached  bool              // lives on when the creating process ends; providers in the cloud always do
	Env       map[string]string // for everything that is started inside
	Metadata  map[string]string // kept with the sandbox; visible in lists
	Resources Resources
	Network   *NetworkPolicy // nil: the provider's default
	Volumes   []Volume       // only with CapVolumes; no path is in another
	Places    []Place        // what the default user must be able to write
	Artifacts []Artifact     // only for providers with ArtifactStore
	Root      RootView
	Scratch   string   // where files are kept that are written: "memory", "disk"; empty: the provider's default
	Isolation string   // what must stand between sandbox and host: "container", "gvisor"; empty: the provider's default
	Debug     bool     // processes inside may trace each other (debuggers), only with CapDebug
	Require   []string // protections that must be enforced, as named in Report; else E2012 and nothing runs
	User      string   // default user inside; empty: the provider's default
	WorkDir   string   // default working directory; empty: the user's home
}

// Resources are limits of one sandbox. Zero means the provider's default.
type Resources struct {
	CPUMilli  int64 // thousandths of a processor
	MemoryMiB int64
	DiskMiB   int64
	Processes int64
	GPU       string // "TYPE" or "TYPE:N", only with CapGPU

	// Bytes per second from and to disks, only with CapDiskRate.
	DiskRead, DiskWrite int64
}

// RootView says what the file tree of a sandbox is. It is for providers with
// CapRootView.
type RootView struct {
	Dir      string   // of the host: the tree in place of the template's, read-only; absolute
	Expose   []string // of the host: shown read-only at the same places; absolute
	Writable bool     // the whole tree can be written, not only its usual places; what is written ends with the sandbox
}

// Volume is storage that outlives sandboxes. One that is not there yet is made,
// empty. Several sandboxes may have it at once.
type Volume struct {
	Name     string // letters, digits and . _ -, a letter or digit first, at most 64 bytes
	Path     string // inside, absolute and clean: the directory it is seen in
	ReadOnly bool
}

// Place is a path that the default user must be able to write. A provider whose
// sandboxes cannot be written everywhere makes it: a directory, or a file that
// is empty and can be written in place.
type Place struct {
	Path string // absolute and clean
	Dir  bool
}

// NetworkPolicy says what a sandbox may reach.
type NetworkPolicy struct {
	Mode  string   // "none", "loopback", "host", "all" or "list"
	Allow []string // for "list": host[:port], *.suffix[:port], CIDR[:port]
}

// Artifact is an executable of the host, named by its content.
type Artifact struct {
	Digest string // lower-case hex SHA-256 of the content
	Path   string // on the host; read once, verified against Digest
}

// State of a sandbox. A native state that a provider does not know is
// StateUnknown, never StateRunning.
type State string

const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopped  State = "stopped"
	StateUnknown  State = "unknown"
)

// Sandbox describes a sandbox at one moment.
type Sandbox struct {
	ID, Provider, Template string // Template is the reference of the image, of one from an image
	State                  State
	CreatedAt              time.Time
	ExpiresAt              time.Time // zero: never
	Metadata               map[string]string
	Resources              Resources
	Data                   Endpoint          // of the runtime; empty unless running
	RuntimeVersion         string            // of envd; empty: unknown
	Artifacts              map[string]string // digest to path inside, of those that are there
	DefaultUser            string            // empty: unknown, leave it to the runtime
}

// Endpoint says how to reach the runtime of a sandbox.
type Endpoint struct {
	URL     string      // base URL; a path prefix is allowed
	Headers http.Header // to add to every request; values are secrets
	Token   Secret      // access token of the runtime; empty: none

	// Dial opens a connection where URL alone does not say how (a unix socket,
	// a tunnel). Nil: by URL.
	Dial func(ctx context.Context) (net.Conn, error)

	// RootCAs are the certificates to trust where URL asks for TLS, also on
	// connections of Dial. Nil: the system's.
	RootCAs *x509.CertPool

	// Channels says that the runtime is ours and serves channels and ports
	// (docs/protocol.md, "Channels", "Ports"). False: not known; the client asks
	// GET /health for its header Sandbox-Features.
	Channels bool

	Limits TransportLimits
}

// TransportLimits are those of what stands between the client and the runtime.
// Zero means no known limit.
type TransportLimits struct {
	RequestBytes int64         // of one request's body
	RequestTime  time.Duration // after which a request is cut
}

// Secret is text that must not be shown: it prints as "***".
type Secret string

// String hides the value.
func (Secret) String() string { return "***" }

// GoString hides the value.
func (Secret) GoString() string { return `"***"` }

// MarshalText hides the value.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Reveal returns the value itself.
func (s Secret) Reveal() string { return string(s) }

// ListRequest selects sandboxes.
type ListRequest struct {
	Metadata map[string]string // every pair must match exactly
	States   []State           // empty: running and paused
	Limit    int               // per page; zero: 100
	Token    string            // of the next page, from Page.Next
}

// Page is one page of a list.
type Page struct {
	Sandboxes []*Sandbox
	Next      string // empty: the last page
}

// ConnectRequest says how to connect.
type ConnectRequest struct {
	Lifetime time.Duration // zero: leave the end as it is
}

// Capabilities says what a provider can do.
type Capabilities struct {
	Set         map[Capability]bool
	Lifetime    LifetimeRange
	CreateFloor time.Duration // never give up on a creation earlier than this
	ListLag     time.Duration // a new sandbox may be missing from List for this long
	Networks    []string      // modes of NetworkPolicy that Create accepts
}

// LifetimeRange bounds lifetimes. Max zero means no bound.
type LifetimeRange struct{ Min, Default, Max time.Duration }

// Capability is something that not every provider can do.
type Capability string

const (
	CapPause          Capability = "pause"
	CapSnapshot       Capability = "snapshot"
	CapFork           Capability = "fork"
	CapPorts          Capability = "ports"
	CapVolumes        Capability = "volumes"
	CapImages         Capability = "images"
	CapGPU            Capability = "gpu"
	CapTemplates      Capability = "templates"
	CapEgressPolicy   Capability = "egress_policy"
	CapMetadataFilter Capability = "metadata_filter"
	CapMetadataUpdate Capability = "metadata_update"
	CapLogs           Capability = "logs"
	CapMetrics        Capability = "metrics"
	CapDetached       Capability = "detached"
	CapHibernate      Capability = "hibernate"
	CapRootView       Capability = "root_view"
	CapDiskRate       Capability = "disk_rate"
	CapDebug          Capability = "debug"
	CapNetworkLog     Capability = "network_log"
	CapContainer      Capability = "isolation:container"
	CapGVisor         Capability = "isolation:gvisor" // proven here
)

// Report says how a sandbox is isolated and what could not be enforced.
type Report struct {
	Engine     string            `json:"engine"`             // "native", "gvisor"
	Platform   string            `json:"platform,omitempty"` // how engine gvisor takes over system calls: "systrap"
	UserNS     string            `json:"userns"`             // "block", "subid" or "single"
	Root       string            `json:"root"`               // root view: "host", …
	Scratch    string            `json:"scratch"`            // "tmpfs", …
	Network    string            `json:"network"`            // mode in force
	Seccomp    int               `json:"seccomp"`            // instructions of the filter
	Landlock   string            `json:"landlock"`           // ABI, or "none"
	Executable string            `json:"executable"`         // how the runtime's binary is protected
	Limits     map[string]string `json:"limits"`             // memory, pids, cpu, disk: mechanism in force
	Freezer    string            `json:"freezer"`
	Volumes    []string          `json:"volumes,omitempty"` // "NAME at PATH", and whether it is read-only
	Degraded   []Degradation     `json:"degraded,omitempty"`
}

// Degradation is a protection that this machine does not let us enforce.
type Degradation struct {
	What   string `json:"what"`   // "memory", "pids", "cpu", "landlock", …
	Why    string `json:"why"`    // what was found
	Remedy string `json:"remedy"` // what would change it
}
