package api

import (
	"encoding/json"
	"time"
)

// States of a sandbox on the wire. The set is open.
const (
	StateRunning = "running"
	StatePaused  = "paused"
)

// Headers of the control plane and of the routing at the data plane.
const (
	HeaderKey          = "X-API-KEY"
	HeaderNextToken    = "X-Next-Token"
	HeaderTotalRunning = "X-Total-Running"

	HeaderSandboxID   = "E2b-Sandbox-Id"
	HeaderSandboxPort = "E2b-Sandbox-Port"
	HeaderTraffic     = "E2B-Traffic-Access-Token"
	HeaderAccessToken = "X-Access-Token"
)

// EnvdPort is the port on which envd is routed.
const EnvdPort = 49983

// CodePort is the port on which the code interpreter is routed.
const CodePort = 49999

// Sandbox is the answer of create, connect and resume.
type Sandbox struct {
	SandboxID          string  `json:"sandboxID"`
	TemplateID         string  `json:"templateID"`
	ClientID           string  `json:"clientID"` // deprecated, and required on the wire
	EnvdVersion        string  `json:"envdVersion"`
	Alias              string  `json:"alias,omitempty"`
	EnvdAccessToken    string  `json:"envdAccessToken,omitempty"`
	TrafficAccessToken *string `json:"trafficAccessToken,omitempty"`
	Domain             *string `json:"domain,omitempty"`
}

// ListedSandbox is one element of a list.
type ListedSandbox struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	ClientID     string            `json:"clientID"`
	Alias        string            `json:"alias,omitempty"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     float64           `json:"cpuCount"` // whole numbers, but for services that divide processors
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	VolumeMounts []VolumeMount     `json:"volumeMounts,omitempty"`
}

// SandboxDetail is the answer of get.
type SandboxDetail struct {
	ListedSandbox
	EnvdAccessToken     string     `json:"envdAccessToken,omitempty"`
	Domain              *string    `json:"domain,omitempty"`
	AllowInternetAccess *bool      `json:"allowInternetAccess,omitempty"`
	Network             *Network   `json:"network,omitempty"`
	Lifecycle           *Lifecycle `json:"lifecycle,omitempty"`
}

// NewSandbox is the body of create, in both versions. A nil pointer is a field
// that is not in the body.
type NewSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout,omitempty"` // seconds; v1 defaults to 15, v2 to 300
	Secure              *bool             `json:"secure,omitempty"`  // v1 only; v2 is always secured
	AllowInternetAccess *bool             `json:"allow_internet_access,omitempty"`
	AutoPause           *bool             `json:"autoPause,omitempty"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory,omitempty"`
	AutoResume          *AutoResume       `json:"autoResume,omitempty"`
	Metadata            map[string]string `json:"metadata,omitempty"`
	EnvVars             map[string]string `json:"envVars,omitempty"`
	Network             *Network          `json:"network,omitempty"`
	IAM                 json.RawMessage   `json:"iam,omitempty"`
	MCP                 json.RawMessage   `json:"mcp,omitempty"`
	VolumeMounts        []VolumeMount     `json:"volumeMounts,omitempty"`

	// Places travel in the header [PlacesHeader]: paths that the default user
	// must be able to write, those of directories with a slash at the end.
	Places []string `json:"-"`
}

// AutoResume says whether a request resumes a paused sandbox.
type AutoResume struct {
	Enabled bool `json:"enabled"`
}

// Lifecycle says what happens at the end of a sandbox's time.
type Lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // "kill" or "pause"
}

// Network is what a sandbox may reach and who may reach it.
type Network struct {
	AllowPublicTraffic *bool                      `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string                   `json:"allowOut,omitempty"`
	DenyOut            []string                   `json:"denyOut,omitempty"`
	EgressProxy        *EgressProxy               `json:"egressProxy,omitempty"`
	MaskRequestHost    string                     `json:"maskRequestHost,omitempty"`
	Rules              map[string]json.RawMessage `json:"rules,omitempty"`
}

// EgressProxy is a SOCKS5 proxy for what leaves a sandbox.
type EgressProxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// VolumeMount is a volume and the directory inside in which it is seen.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Connect is the body of connect. v1 requires Timeout; v2 defaults to 300.
type Connect struct {
	Timeout *int64 `json:"timeout,omitempty"` // seconds from now
	Memory  *bool  `json:"memory,omitempty"`
}

// Timeout is the body of the route that moves a sandbox's end.
type Timeout struct {
	Timeout int64 `json:"timeout"` // seconds from now
}

// Refresh is the body of the old keep-alive.
type Refresh struct {
	Duration *int64 `json:"duration,omitempty"` // seconds
}

// Pause is the body of pause; it may be missing.
type Pause struct {
	Memory *bool `json:"memory,omitempty"`
}

// Resume is the body of the deprecated resume.
type Resume struct {
	Timeout   *int64 `json:"timeout,omitempty"` // seconds; default 15
	AutoPause *bool  `json:"autoPause,omitempty"`
	Memory    *bool  `json:"memory,omitempty"`
}

// Metric is what a sandbox took at one moment. Sizes are in bytes.
type Metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      float64   `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// NewSnapshot is the body of the route that takes a snapshot.
type NewSnapshot struct {
	Name string `json:"name,omitempty"`
}

// Snapshot is what was kept of a sandbox. It is a template: its id is one of
// those that create and the deletion of templates take.
type Snapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`

	// These are ours; the hosted service does not say them.
	SandboxID string    `json:"sandboxID,omitempty"`
	CreatedAt time.Time `json:"createdAt,omitzero"`
	Size      int64     `json:"size,omitempty"` // bytes
}

// ErrorBody is the body of every failure. SDKs read Code from here, not from
// the status line.
type ErrorBody struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}
