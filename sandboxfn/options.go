package sandboxfn

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Bytes is an amount of memory, storage or payload.
type Bytes int64

// Units of [Bytes].
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// String prints b in the largest unit that divides it: "512MiB".
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b != 0 && b%u.size == 0 {
			return fmt.Sprintf("%d%s", int64(b/u.size), u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(b))
}

// Values that say "none" where the zero value means "not set".
const (
	NoTimeout = time.Duration(-1) // Options.Timeout: no limit but the caller's deadline
	NoGrace   = time.Duration(-1) // Options.Grace: the worker is killed at once
	NoIdle    = time.Duration(-1) // Options.Idle: a worker is given up after each call
	NoRetries = -1                // Options.Retries: never again, even when idempotent
)

// LogMode says where the output of functions goes.
type LogMode string

// The modes of [LogMode]. The zero value is LogForward.
const (
	LogForward LogMode = "forward" // to Stdout and Stderr, whole lines, in order
	LogSlog    LogMode = "slog"    // each line a record of the client's logger, or slog.Default
	LogDiscard LogMode = "discard" // nowhere
)

// Backoff is how long to wait before a call is tried again: a random time
// between zero and First, then between zero and First·Factor, and so on up to
// Max.
type Backoff struct {
	First, Max time.Duration
	Factor     float64
}

// Workers bounds how many workers a pool keeps: at least Min once it is in use,
// at most Max. The zero value means 0..16.
type Workers struct{ Min, Max int }

// Codec says how arguments and results are encoded.
type Codec string

// The codecs. The zero value means CodecCBOR.
const (
	CodecCBOR Codec = "cbor"
	CodecJSON Codec = "json" // to look at the traffic; refuses NaN and infinities
)

// Nested says what happens when a sandboxed function calls the wrapper of
// another one.
type Nested string

// The ways of [Nested]. The zero value means NestedCaller.
const (
	NestedCaller Nested = "caller" // the caller runs it, in a sandbox of its pools
	NestedLocal  Nested = "local"  // it runs in the same worker
	NestedRefuse Nested = "refuse" // it fails with E9016
)

// A FileMount is a file, or a tree, that a sandbox gets before its worker
// starts.
type FileMount struct {
	Remote string // absolute path inside
	FS     fs.FS  // holds Name
	Name   string // of the file or directory in FS
}

// A Volume is storage of the provider that outlives sandboxes.
type Volume struct {
	Name     string
	Path     string // absolute path inside
	ReadOnly bool
}

// Options are the settings of a function. Every field's zero value means "not
// set": directives fill the handle's options, [Func.With] overrides single
// fields of them, and what is set nowhere has the default named here. Functions
// whose Provider, Template, CPU, Memory, Disk, Env, Network, User and WorkDir
// are equal share sandboxes.
type Options struct {
	Template string // recipe of the sandbox; default: the provider's
	Image    string // OCI reference in place of a template
	Provider string // backend; default: the client's

	Timeout        time.Duration // of one attempt's execution; default 5m
	StartupTimeout time.Duration // of creating a sandbox and starting a worker in it; default 60s
	Grace          time.Duration // from cancellation to the kill of the worker; default 1s

	Idempotent bool    // a call whose outcome is unknown may run again
	Retries    int     // attempts beyond the first; default 2 with Idempotent, else 0
	Backoff    Backoff // between attempts; default 100ms..10s*2

	Workers     Workers       // default 0..16
	Spare       int           // workers kept idle beyond demand; default 0
	Idle        time.Duration // an idle worker beyond Workers.Min is given up after this; default 60s
	Concurrency int           // calls at once inside one worker; default 1
	Fresh       bool          // a new sandbox for each call
	InFlight    int           // calls of one Map at once; default: Workers.Max × Concurrency, and one more for each worker

	Batch     int           // calls that may run as one; set by the directive of a batch function
	BatchWait time.Duration // how long the first call of a batch waits for others; default 10ms

	CPU          float64           // processors; default: the template's
	Memory, Disk Bytes             // default: the template's
	GPU          string            // "TYPE" or "TYPE:N"; default: none
	Env          map[string]string // environment of the worker
	Secrets      map[string]string // variable of the worker → name at the client's source of secrets; empty: the same name
	Files        []FileMount       // files that are put into the sandbox
	Volumes      []Volume          // storage that outlives the sandbox
	Network      string            // "none", "loopback", "host", or a list; default: the provider's
	User         string            // inside; default: the template's
	WorkDir      string            // absolute; default: the template's

	Log        LogMode // default LogForward
	MaxPayload Bytes   // of arguments, and of results; default 512MiB
	Codec      Codec   // of arguments and results; default CodecCBOR
	Nested     Nested  // what a call from inside the function's sandbox does; default NestedCaller

	// Stdout and Stderr receive forwarded output; nil means the client's, which
	// are os.Stdout and os.Stderr unless it says otherwise. Calls that run at
	// once may share them: whole lines are written, one write at a time. What a
	// function has written is complete when its call returns. A writer that
	// blocks does not block the function: beyond 1 MiB, what it does not take in
	// time is dropped, and the number of dropped lines is written.
	Stdout, Stderr io.Writer
}

// override returns o with every field that is set in with taken from there.
func (o Options) override(with Options) Options {
	set(&o.Template, with.Template)
	set(&o.Provider, with.Provider)
	set(&o.Timeout, with.Timeout)
	set(&o.StartupTimeout, with.StartupTimeout)
	set(&o.Grace, with.Grace)
	set(&o.Idempotent, with.Idempotent)
	set(&o.Retries, with.Retries)
	set(&o.Backoff, with.Backoff)
	set(&o.Workers, with.Workers)
	set(&o.Idle, with.Idle)
	set(&o.CPU, with.CPU)
	set(&o.Memory, with.Memory)
	set(&o.Disk, with.Disk)
	set(&o.Network, with.Network)
	set(&o.User, with.User)
	set(&o.WorkDir, with.WorkDir)
	set(&o.Log, with.Log)
	set(&o.MaxPayload, with.MaxPayload)
	if with.Stdout != nil {
		o.Stdout = with.Stdout
	}
	if with.Stderr != nil {
		o.Stderr = with.Stderr
	}
	if len(with.Env) > 0 {
		env := maps.Clone(o.Env)
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, with.Env)
		o.Env = env
	}
	return o
}

func set[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

// withDefaults returns o with every unset field filled in and the values that
// say "none" turned into zero.
func (o Options) withDefaults() Options {
	none(&o.Timeout, NoTimeout, 5*time.Minute)
	none(&o.StartupTimeout, 0, time.Minute)
	none(&o.Grace, NoGrace, time.Second)
	none(&o.Idle, NoIdle, time.Minute)
	retries := 0
	if o.Idempotent {
		retries = 2
	}
	none(&o.Retries, NoRetries, retries)
	none(&o.Backoff, Backoff{}, Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2})
	none(&o.Workers, Workers{}, Workers{Max: 16})
	none(&o.Log, "", LogForward)
	none(&o.MaxPayload, 0, 512*MiB)
	o.Env = maps.Clone(o.Env)
	return o
}

// none fills an unset field with def, and turns the value that says "none" into
// zero.
func none[T comparable](field *T, no, def T) {
	var zero T
	switch *field {
	case zero:
		*field = def
	case no:
		*field = zero
	}
}

// check refuses values that a directive could not have set. o has its defaults.
func (o Options) check(op string) error {
	bad := func(format string, args ...any) error {
		return errdefs.New("E2011", op, fmt.Sprintf(format, args...))
	}
	within := func(name string, d, low, high time.Duration) error {
		if d < low || d > high {
			return bad("option %s: %v is out of range %v..%v", name, d, low, high)
		}
		return nil
	}
	for _, err := range []error{
		within("Timeout", o.Timeout, 0, 24*time.Hour),
		within("StartupTimeout", o.StartupTimeout, 1, time.Hour),
		within("Grace", o.Grace, 0, time.Minute),
		within("Idle", o.Idle, 0, 1<<62),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case o.Retries < 0 || o.Retries > 10:
		return bad("option Retries: %d is out of range 0..10", o.Retries)
	case o.Retries > 0 && !o.Idempotent:
		return bad("option Retries needs Idempotent: a retried call may run twice")
	case o.Backoff.First <= 0 || o.Backoff.Max < o.Backoff.First || !(o.Backoff.Factor >= 1):
		return bad("option Backoff: %v..%v*%v needs 0 < First <= Max and Factor >= 1", o.Backoff.First, o.Backoff.Max, o.Backoff.Factor)
	case o.Workers.Min < 0 || o.Workers.Max < 1 || o.Workers.Max > 1000 || o.Workers.Min > o.Workers.Max:
		return bad("option Workers: %d..%d needs 0 <= Min <= Max and 1 <= Max <= 1000", o.Workers.Min, o.Workers.Max)
	case o.CPU < 0 || o.CPU != o.CPU || o.Memory < 0 || o.Disk < 0:
		return bad("options CPU, Memory and Disk can't be negative")
	case o.Log != LogForward && o.Log != LogSlog && o.Log != LogDiscard:
		return bad("option Log: %q is not one of forward, slog, discard", o.Log)
	case o.WorkDir != "" && !path.IsAbs(o.WorkDir):
		return bad("option WorkDir: %q is not absolute", o.WorkDir)
	case o.MaxPayload < 64*KiB || o.MaxPayload > 16*GiB:
		return bad("option MaxPayload: %v is out of range 64KiB..16GiB", o.MaxPayload)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Env)) {
		switch {
		case !isEnvName(name):
			return bad("option Env: %q is not a name of a variable: letters, digits and _, no digit first", name)
		case strings.HasPrefix(name, "SANDBOX_"):
			return bad("option Env: %s is reserved", name)
		case strings.ContainsRune(o.Env[name], 0):
			return bad("option Env: the value of %s holds a NUL byte", name)
		}
	}
	return nil
}

// isEnvName reports whether name has the form that directives accept.
func isEnvName(name string) bool {
	for i, r := range name {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
