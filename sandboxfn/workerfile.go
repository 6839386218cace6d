package sandboxfn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// workerFiles finds the executable that becomes the worker in sandboxes of a
// platform.
type workerFiles struct {
	c *Client

	mu        sync.Mutex
	platforms map[string]string       // guarded by mu; by template
	builds    map[string]*workerBuild // guarded by mu; by platform
}

// workerBuild is a build that runs, or one that succeeded.
type workerBuild struct {
	done chan struct{}
	file artifact.Self // valid after done, as err
	err  error
}

// buildTimeout bounds the build of a worker. It goes on when the call that
// needed it first has given up.
const buildTimeout = 10 * time.Minute

// templateKey names what decides about the platform of a sandbox.
func templateKey(o *Options) string {
	return strings.Join([]string{o.Provider, o.Template, o.Image}, "\n")
}

// likely is the executable to try first in sandboxes of s. It is the zero Self
// when the platform of the sandbox must be known first.
func (f *workerFiles) likely(ctx context.Context, s *setup) (artifact.Self, error) {
	f.mu.Lock()
	platform := f.platforms[templateKey(&s.opts)]
	f.mu.Unlock()
	if platform == "" && f.c.opts.WorkerBinary == "" {
		if runtime.GOOS != "linux" {
			return artifact.Self{}, nil
		}
		platform = "linux/" + runtime.GOARCH
	}
	return f.forPlatform(ctx, s, platform)
}

// platformOf asks a sandbox of s for its platform, and remembers it.
func (f *workerFiles) platformOf(ctx context.Context, s *setup, sb *Sandbox) (string, error) {
	out, err := sb.Command(ctx, "uname", "-m").Output()
	if err != nil {
		return "", errdefs.Wrap("E9010", s.name, "cannot find out the sandbox's platform", err)
	}
	platform := "linux/" + goArch(strings.TrimSpace(string(out)))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.platforms == nil {
		f.platforms = make(map[string]string)
	}
	f.platforms[templateKey(&s.opts)] = platform
	return platform, nil
}

// goArch is the GOARCH of what uname calls a machine.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	case "i386", "i486", "i586", "i686":
		return "386"
	case "armv6l", "armv7l", "armv8l":
		return "arm"
	}
	return machine // riscv64, s390x, ppc64le, loongarch64 …
}

// forPlatform is the executable for sandboxes of a platform; "" is one that is
// not known yet.
func (f *workerFiles) forPlatform(ctx context.Context, s *setup, platform string) (artifact.Self, error) {
	if path := f.c.opts.WorkerBinary; path != "" {
		file, err := artifact.Open(path)
		if err == nil && platform != "" && file.Platform != platform {
			err = errors.New(path + " is for " + file.Platform)
		}
		if err != nil {
			return artifact.Self{}, noWorker(s, platform, "the worker's executable cannot be used", err)
		}
		return file, nil
	}
	if runtime.GOOS+"/"+runtime.GOARCH == platform && !testOnlyBuildWorkers {
		file, err := artifact.Own()
		if err != nil {
			return artifact.Self{}, errdefs.Wrap("E9010", s.name, "cannot read the program's own file", err)
		}
		return file, nil
	}
	file, err := f.build(ctx, platform)
	if err != nil {
		return artifact.Self{}, noWorker(s, platform, "none could be built here", err)
	}
	return file, nil
}

// testOnlyBuildWorkers makes workers of this platform be built like those of
// others.
var testOnlyBuildWorkers bool

// noWorker is E9010 with what the user can do.
func noWorker(s *setup, platform, message string, cause error) error {
	pkg := "the main package"
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" && !strings.HasSuffix(info.Path, ".test") {
		pkg = info.Path
	}
	if platform == "" {
		platform = "linux/amd64"
	} else {
		message = "this program is " + runtime.GOOS + "/" + runtime.GOARCH + ", the sandbox " + platform + ": " + message
	}
	return &errdefs.Error{
		Code: "E9010", Op: s.name, Err: cause,
		Message: message,
		Suggestion: "build a worker with sandboxgen -worker -target " + platform + " -o worker " + pkg +
			", and set SANDBOX_WORKER_BINARY to its path",
	}
}

// build builds this program for platform, once at a time.
func (f *workerFiles) build(ctx context.Context, platform string) (artifact.Self, error) {
	f.mu.Lock()
	b := f.builds[platform]
	if b == nil {
		b = &workerBuild{done: make(chan struct{})}
		if f.builds == nil {
			f.builds = make(map[string]*workerBuild)
		}
		f.builds[platform] = b
		go f.run(b, platform)
	}
	f.mu.Unlock()
	select {
	case <-b.done:
		return b.file, b.err
	case <-ctx.Done():
		return artifact.Self{}, context.Cause(ctx)
	}
}

func (f *workerFiles) run(b *workerBuild, platform string) {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	defer close(b.done)
	cache, err := f.cache()
	if err == nil {
		b.file, err = artifact.Build(ctx, cache, platform)
	}
	if b.err = err; err != nil {
		f.mu.Lock()
		delete(f.builds, platform) // the next call tries again
		f.mu.Unlock()
		return
	}
	if err := artifact.Trim(cache, time.Now()); err != nil {
		f.c.log.Debug("trim the cache of workers", "error", err)
	}
}

// cache is the folder of built workers.
func (f *workerFiles) cache() (string, error) {
	dir := f.c.opts.CacheDir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "sandbox")
	}
	return filepath.Join(dir, "workers"), nil
}
