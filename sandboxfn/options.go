package sandboxfn

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
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

// LogMode says where the output of functions goes. What they log with log/slog is
// handled by the client's logger, or slog.Default, with all modes but LogDiscard.
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
// of one package share sandboxes when everything is equal that says what a
// sandbox is: Provider, Template or Image, CPU, Memory, Disk, GPU, Env, Secrets,
// Files, Volumes, Network, User, WorkDir, Concurrency and Fresh.
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
	Files        []FileMount       `json:"-"` // files that are put into the sandbox
	Volumes      []Volume          // storage that outlives the sandbox
	Network      string            // "none", "loopback", "host", or a list; default: the provider's
	User         string            // inside; default: the template's
	WorkDir      string            // absolute; default: the template's

	Log        LogMode // default LogForward
	MaxPayload Bytes   // of arguments, and of results; default 512MiB
	Codec      Codec   // of arguments and results; default CodecCBOR
	Nested     Nested  // what a call from inside the function's sandbox does; default NestedCaller

	// Tracer follows calls; nil means the client's.
	Tracer Tracer `json:"-"`

	// Stdout and Stderr receive forwarded output; nil means the client's, which
	// are os.Stdout and os.Stderr unless it says otherwise. Calls that run at
	// once may share them: whole lines are written, one write at a time. What a
	// function has written is complete when its call returns, or the call fails.
	// A writer that blocks does not block the function: once a single write takes
	// 5 s, what is beyond 1 MiB is dropped, and the number of dropped lines is
	// written. What can't block, as a *bytes.Buffer, is waited for.
	Stdout, Stderr io.Writer `json:"-"`
}

// override returns o with every field that is set in with taken from there.
func (o Options) override(with Options) Options {
	// Of two names for what a sandbox is made from, the one set last counts.
	if with.Template != "" || with.Image != "" {
		o.Template, o.Image = with.Template, with.Image
	}
	set(&o.Provider, with.Provider)
	set(&o.Timeout, with.Timeout)
	set(&o.StartupTimeout, with.StartupTimeout)
	set(&o.Grace, with.Grace)
	set(&o.Idempotent, with.Idempotent)
	set(&o.Retries, with.Retries)
	set(&o.Backoff, with.Backoff)
	set(&o.Workers, with.Workers)
	if with.Fresh {
		o.Spare, o.Idle, o.Concurrency = 0, 0, 0
	}
	set(&o.Spare, with.Spare)
	set(&o.Idle, with.Idle)
	set(&o.Concurrency, with.Concurrency)
	set(&o.Fresh, with.Fresh)
	set(&o.InFlight, with.InFlight)
	set(&o.Batch, with.Batch)
	set(&o.BatchWait, with.BatchWait)
	set(&o.CPU, with.CPU)
	set(&o.Memory, with.Memory)
	set(&o.Disk, with.Disk)
	set(&o.GPU, with.GPU)
	set(&o.Network, with.Network)
	set(&o.User, with.User)
	set(&o.WorkDir, with.WorkDir)
	set(&o.Log, with.Log)
	set(&o.MaxPayload, with.MaxPayload)
	set(&o.Codec, with.Codec)
	set(&o.Nested, with.Nested)
	if with.Tracer != nil {
		o.Tracer = with.Tracer
	}
	if with.Stdout != nil {
		o.Stdout = with.Stdout
	}
	if with.Stderr != nil {
		o.Stderr = with.Stderr
	}
	o.Env = merged(o.Env, with.Env)
	o.Secrets = merged(o.Secrets, with.Secrets)
	o.Files = appended(o.Files, with.Files, func(m FileMount) string { return m.Remote })
	o.Volumes = appended(o.Volumes, with.Volumes, func(v Volume) string { return v.Path })
	return o
}

// appended is a with the elements of b after it, which replace those of a that
// have the same path.
func appended[T any](a, b []T, at func(T) string) []T {
	if len(b) == 0 {
		return a
	}
	kept := slices.DeleteFunc(slices.Clone(a), func(x T) bool {
		return slices.ContainsFunc(b, func(y T) bool { return path.Clean(at(x)) == path.Clean(at(y)) })
	})
	return append(kept, b...)
}

// merged is a with the pairs of b, which win. Neither changes.
func merged(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	m := make(map[string]string, len(a)+len(b))
	maps.Copy(m, a)
	maps.Copy(m, b)
	return m
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
	if o.Fresh && o.Idle == 0 {
		o.Idle = NoIdle
	}
	none(&o.Idle, NoIdle, time.Minute)
	none(&o.Concurrency, 0, 1)
	retries := 0
	if o.Idempotent {
		retries = 2
	}
	none(&o.Retries, NoRetries, retries)
	none(&o.Backoff, Backoff{}, Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2})
	none(&o.Workers, Workers{}, Workers{Max: 16})
	none(&o.Log, "", LogForward)
	none(&o.MaxPayload, 0, 512*MiB)
	none(&o.Codec, "", CodecCBOR)
	none(&o.Nested, "", NestedCaller)
	if o.Batch != 0 {
		none(&o.BatchWait, 0, 10*time.Millisecond)
	}
	o.Env = maps.Clone(o.Env)
	o.Secrets = maps.Clone(o.Secrets)
	for name, source := range o.Secrets {
		if source == "" {
			o.Secrets[name] = name
		}
	}
	o.Files = slices.Clone(o.Files)
	o.Volumes = slices.Clone(o.Volumes)
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
	if o.Batch != 0 {
		if err := within("BatchWait", o.BatchWait, 1, 1<<62); err != nil {
			return err
		}
	}
	switch {
	case o.Template != "" && o.Image != "":
		return bad("options Template and Image exclude each other: both say what the sandbox is made from")
	case strings.ContainsFunc(o.Image, notInName):
		return bad("option Image: %q is not a reference to an image", o.Image)
	case !isGPU(o.GPU):
		return bad("option GPU: %q is not TYPE or TYPE:COUNT", o.GPU)
	case o.Spare < 0 || o.Spare > 1000:
		return bad("option Spare: %d is out of range 0..1000", o.Spare)
	case o.Concurrency < 1 || o.Concurrency > 1000:
		return bad("option Concurrency: %d is out of range 1..1000", o.Concurrency)
	case o.Fresh && (o.Concurrency > 1 || o.Spare > 0 || o.Idle > 0):
		return bad("option Fresh excludes Concurrency above 1, Spare and Idle: a sandbox serves one call")
	case o.InFlight < 0:
		return bad("option InFlight: %d is negative", o.InFlight)
	case o.Batch != 0 && (o.Batch < 2 || o.Batch > 1000):
		return bad("option Batch: %d is out of range 2..1000", o.Batch)
	case o.Batch == 0 && o.BatchWait != 0:
		return bad("option BatchWait needs Batch: there is nothing to wait for")
	case o.Codec != CodecCBOR && o.Codec != CodecJSON:
		return bad("option Codec: %q is not one of cbor, json", o.Codec)
	case o.Nested != NestedCaller && o.Nested != NestedLocal && o.Nested != NestedRefuse:
		return bad("option Nested: %q is not one of caller, local, refuse", o.Nested)
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
	case 0 < o.Memory && o.Memory < MiB: // a number without its unit
		return bad("option Memory: %v is less than 1MiB; did you mean %d*sandboxfn.MiB?", o.Memory, int64(o.Memory))
	case 0 < o.Disk && o.Disk < MiB:
		return bad("option Disk: %v is less than 1MiB; did you mean %d*sandboxfn.MiB?", o.Disk, int64(o.Disk))
	case o.Log != LogForward && o.Log != LogSlog && o.Log != LogDiscard:
		return bad("option Log: %q is not one of forward, slog, discard", o.Log)
	case o.WorkDir != "" && !path.IsAbs(o.WorkDir):
		return bad("option WorkDir: %q is not absolute", o.WorkDir)
	case o.MaxPayload < 64*KiB || o.MaxPayload > 16*GiB:
		return bad("option MaxPayload: %v is out of range 64KiB..16GiB", o.MaxPayload)
	}
	for _, vars := range []struct {
		option string
		names  map[string]string
	}{{"Env", o.Env}, {"Secrets", o.Secrets}} {
		for _, name := range slices.Sorted(maps.Keys(vars.names)) {
			switch {
			case !isEnvName(name):
				return bad("option %s: %q is not a name of a variable: letters, digits and _, no digit first", vars.option, name)
			case strings.HasPrefix(name, "SANDBOX_"):
				return bad("option %s: %s is reserved", vars.option, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Env)) {
		switch _, both := o.Secrets[name]; {
		case both:
			return bad("options Env and Secrets exclude each other: both set %s", name)
		case strings.ContainsRune(o.Env[name], 0):
			return bad("option Env: the value of %s holds a NUL byte", name)
		}
	}
	for i, f := range o.Files {
		switch {
		case !isPlace(f.Remote):
			return bad("option Files: %q is not an absolute path of a file or directory", f.Remote)
		case f.FS == nil || !fs.ValidPath(f.Name):
			return bad("option Files: %s has no FS, or %q is not a path in it", f.Remote, f.Name)
		case slices.ContainsFunc(o.Files[:i], func(g FileMount) bool { return path.Clean(g.Remote) == path.Clean(f.Remote) }):
			return bad("option Files: two are put at %s", f.Remote)
		}
	}
	return checkVolumes(o.Volumes, bad)
}

// checkVolumes refuses volumes that no provider can have, or that hide each
// other.
func checkVolumes(vs []Volume, bad func(format string, args ...any) error) error {
	for i, v := range vs {
		switch {
		case !isVolumeName(v.Name):
			return bad("option Volumes: %q is not a name of a volume: letters, digits and . _ -, a letter or digit first, at most 64", v.Name)
		case !isPlace(v.Path):
			return bad("option Volumes: path %q of %s is not the absolute path of a directory", v.Path, v.Name)
		}
		for _, w := range vs[:i] {
			a, b := path.Clean(v.Path), path.Clean(w.Path)
			if a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") {
				return bad("option Volumes: %s at %s and %s at %s are the same place or one lies in the other", w.Name, b, v.Name, a)
			}
		}
	}
	return nil
}

// isPlace reports whether p can be the path of something in a sandbox that is
// not all of it.
func isPlace(p string) bool {
	return path.IsAbs(p) && path.Clean(p) != "/" && !strings.ContainsRune(p, 0) && len(p) < 4096
}

func isVolumeName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, notInName) && !strings.ContainsAny(s[:1], "._-") && !strings.ContainsAny(s, "/:@+")
}

// notInName reports whether r has no place in names of images and volumes.
func notInName(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !letter && !strings.ContainsRune("._-/:@+", r)
}

// isGPU reports whether s is empty or TYPE or TYPE:COUNT.
func isGPU(s string) bool {
	kind, count, counted := strings.Cut(s, ":")
	if counted {
		n, err := strconv.Atoi(count)
		counted = err != nil || n < 1 || n > 9999 || count != strconv.Itoa(n)
	}
	return s == "" || !counted && isVolumeName(kind)
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
