// Package model holds what a template says, in the form that everything but the
// reader of template files works with: the client, the providers and the runtime
// in a sandbox. It is stored as JSON. Package templates reads the files that
// people write.
package model

import "time"

// Version is the format of the stored form. A reader refuses a newer one.
const Version = 1

// Template is one template. The zero value of every field means that nothing was
// said; defaults are those of the reader of the field.
type Template struct {
	Format int `json:"format"` // Version

	Name        string   `json:"name"`
	DisplayName string   `json:"display_name,omitempty"`
	Version     string   `json:"version,omitempty"` // semantic version of the template
	Description string   `json:"description,omitempty"`
	Author      string   `json:"author,omitempty"`
	License     string   `json:"license,omitempty"`
	Homepage    string   `json:"homepage,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Category    string   `json:"category,omitempty"`

	Base         Base   `json:"base,omitzero"`
	Build        []Step `json:"build,omitempty"`
	BuildNetwork string `json:"build_network,omitempty"` // of build steps, as Network; empty: the builder's default
	Dockerfile   string `json:"dockerfile,omitempty"`    // text of the folder's own; where set, Base and Build are not used

	Env         map[string]string  `json:"env,omitempty"`
	Ports       []int              `json:"ports,omitempty"`
	Public      bool               `json:"public,omitempty"`
	Network     string             `json:"network,omitempty"`    // as the option of the same name: a word, or rules between commas
	Requires    []string           `json:"requires,omitempty"`   // programs that must be found on PATH
	Generation  int                `json:"generation,omitempty"` // of the platform, for providers that have several
	Resources   Resources          `json:"resources,omitzero"`
	Persistent  bool               `json:"persistent,omitempty"`
	Workdir     string             `json:"workdir,omitempty"`
	User        string             `json:"user,omitempty"`
	Shell       string             `json:"shell,omitempty"`
	Start       string             `json:"start,omitempty"` // shell line started with the sandbox
	Ready       *Probe             `json:"ready,omitempty"`
	Health      *Health            `json:"health,omitempty"`
	Server      *Server            `json:"server,omitempty"` // nil: the groups that are on by default
	Policy      Policy             `json:"policy,omitzero"`
	Commands    map[string]Command `json:"commands,omitempty"`
	Interpreter Interpreter        `json:"interpreter,omitzero"`
	Agent       *Agent             `json:"agent,omitempty"`
}

// Base is what a template starts from: at most one of Image and From is set, none
// is the built-in template "base".
type Base struct {
	Image string `json:"image,omitempty"` // OCI reference
	From  string `json:"from,omitempty"`  // another template; empty once it has been resolved
	Host  bool   `json:"host,omitempty"`  // the machine's own files where the provider can show them, Image elsewhere
}

// Step is one step of a build: exactly one field is set.
type Step struct {
	Apt  []string `json:"apt,omitempty"` // packages
	Pip  []string `json:"pip,omitempty"`
	Npm  []string `json:"npm,omitempty"`
	Run  string   `json:"run,omitempty"` // shell line
	Copy *Copy    `json:"copy,omitempty"`
}

// Copy brings a file or folder of the template's folder into the image. A file
// becomes Dest, or goes into it when Dest ends with a slash; what is in a folder
// goes into Dest.
type Copy struct {
	Src  string `json:"src"`  // relative, slashes
	Dest string `json:"dest"` // absolute, or relative to the working folder
}

// Resources are what a sandbox gets. Zero: the provider's default.
type Resources struct {
	CPU         float64       `json:"cpu,omitempty"`       // cores
	MemoryMB    int           `json:"memory_mb,omitempty"` // 1024*1024 bytes
	DiskMB      int           `json:"disk_mb,omitempty"`
	GPU         string        `json:"gpu,omitempty"`
	Lifetime    time.Duration `json:"lifetime,omitempty"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
}

// Probe says when a sandbox is ready: one of the two is set.
type Probe struct {
	Port    int           `json:"port,omitempty"`    // something accepts connections
	Command string        `json:"command,omitempty"` // shell line that ends with 0
	Timeout time.Duration `json:"timeout,omitempty"` // zero: 60 s
}

// Health is a command that tells whether a sandbox still works.
type Health struct {
	Command  string        `json:"command"`
	Interval time.Duration `json:"interval,omitempty"` // zero: 30 s
	Timeout  time.Duration `json:"timeout,omitempty"`  // zero: 10 s
	Retries  int           `json:"retries,omitempty"`  // zero: 3
}

// Server switches groups and single endpoints of the runtime's API by name:
// "process", "process.*" or "process.exec". Disable beats Enable.
type Server struct {
	Enable  []string `json:"enable,omitzero"` // nil: what is on by default; empty: core alone
	Disable []string `json:"disable,omitempty"`
}

// Policy says what may be done in a sandbox, over every protocol. In its lists nil
// and empty differ: an empty one permits nothing, where nil permits all.
type Policy struct {
	Files    FilePolicy    `json:"files,omitzero"`
	Commands CommandPolicy `json:"commands,omitzero"`
}

// FilePolicy limits file operations. Paths are absolute.
type FilePolicy struct {
	Read        []string `json:"read,omitzero"`  // folders; nil: all
	Write       []string `json:"write,omitzero"` // folders, each in a readable one; nil: all that may be read
	Deny        []string `json:"deny,omitzero"`  // patterns, path.Match with "**" for any depth
	FollowLinks *bool    `json:"follow_links,omitempty"`
	MaxBytes    int64    `json:"max_bytes,omitempty"`   // of one file that is written; zero: no limit
	MaxEntries  int      `json:"max_entries,omitempty"` // of one listing, search or archive; zero: the limit of each of them
}

// CommandPolicy limits what is started.
type CommandPolicy struct {
	Allow        []CommandRule `json:"allow,omitzero"` // nil: everything
	Deny         []CommandRule `json:"deny,omitzero"`
	Shell        *bool         `json:"shell,omitempty"` // nil: true; false refuses shells
	Users        []string      `json:"users,omitzero"`  // nil: all
	Cwd          []string      `json:"cwd,omitzero"`    // folders; nil: the readable ones
	EnvDeny      []string      `json:"env_deny,omitzero"`
	MaxProcesses int           `json:"max_processes,omitempty"` // zero: no limit
	MaxRuntime   time.Duration `json:"max_runtime,omitempty"`   // zero: no limit
	MaxOutput    int64         `json:"max_output,omitempty"`    // bytes kept of each output
}

// CommandRule matches a program and the beginning of its arguments.
type CommandRule struct {
	Program string   `json:"program"` // name, or absolute path after links
	Args    []string `json:"args,omitempty"`
}

// Command is a named command. Run is split into words before values are put in,
// so that a value is never more than (part of) one argument; with Shell, it is a
// shell line and values are quoted.
type Command struct {
	Description string            `json:"description,omitempty"`
	Run         string            `json:"run"` // with {name} for values
	Shell       bool              `json:"shell,omitempty"`
	Hidden      bool              `json:"hidden,omitempty"` // can be run, is not listed
	Cwd         string            `json:"cwd,omitzero"`
	User        string            `json:"user,omitempty"`
	Timeout     time.Duration     `json:"timeout,omitempty"` // zero: 60 s; negative: none
	Env         map[string]string `json:"env,omitempty"`
	Args        []Arg             `json:"args,omitempty"`
}

// Arg is one argument of a named command.
type Arg struct {
	Name        string  `json:"name"`
	Type        string  `json:"type,omitempty"` // string (the default), integer, float, boolean
	Required    bool    `json:"required,omitempty"`
	Default     *string `json:"default,omitempty"`
	Description string  `json:"description,omitempty"`
}

// Interpreter configures code contexts.
type Interpreter struct {
	MaxContexts int               `json:"max_contexts,omitempty"` // zero: 32
	IdleTimeout time.Duration     `json:"idle_timeout,omitempty"` // zero: 1 h
	Prestart    []string          `json:"prestart,omitempty"`     // languages whose default context starts with the sandbox
	Programs    map[string]string `json:"programs,omitempty"`     // language to an executable that speaks the driver protocol
}

// Agent describes the template to agents that choose one.
type Agent struct {
	Description  string   `json:"description,omitempty"`
	Triggers     []string `json:"triggers,omitempty"`
	Instructions string   `json:"instructions,omitempty"`
}
