//go:build linux

package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stopLimit  = 5 * time.Second  // for an engine to end by itself
	cleanLimit = 60 * time.Second // for removing what it has kept
)

// engineCommand is a command that ends with ctx, and with it what it has started
// in its group. A nil env is that of this process.
func engineCommand(ctx context.Context, path string, env []string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, path, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGTERM) }
	c.WaitDelay = stopLimit
	c.Env = env
	return c
}

// engineRun is one build by an engine.
type engineRun struct {
	engine
	dir       string // of this build alone
	temporary string // where the engine keeps its temporary folders
	env       []string
	mark      string // by which what is left is found
	network   string
	fresh     bool
	running   map[string]string // steps when the build was stopped
}

// newRun makes the folder of a build.
func (e *engine) newRun() (*engineRun, error) {
	tmp := cmp.Or(os.Getenv("TMPDIR"), "/var/tmp") // as engines do: /tmp is often in memory, and small
	dir, err := os.MkdirTemp(tmp, "sandbox-build-")
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	r := &engineRun{engine: *e, dir: dir, temporary: tmp, mark: randomText(20)}
	if !e.rootless || os.Getenv("XDG_RUNTIME_DIR") != "" { // otherwise what runs is there too
		r.temporary = filepath.Join(dir, "tmp")
		r.env = append(os.Environ(), "TMPDIR="+r.temporary)
	}
	for _, d := range []string{r.context(), r.temporary} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return r, nil
}

func (r *engineRun) dockerfile() string { return filepath.Join(r.dir, "Dockerfile") }
func (r *engineRun) context() string    { return filepath.Join(r.dir, "context") }
func (r *engineRun) exported() string   { return filepath.Join(r.dir, "image") }
func (r *engineRun) tag() string        { return "localhost/sandbox-build:" + r.mark }

// markArg is a build argument that no Dockerfile uses. It is kept with the
// container that the steps run in.
const markArg = "SANDBOX_BUILD_MARK"

// build runs the engine. Its intermediate images would stay behind, so that there
// are none, or none that a later build is made from.
func (r *engineRun) build(ctx context.Context, w io.Writer) error {
	args := append([]string{"build", "--force-rm", "--file", r.dockerfile(), "--tag", r.tag()}, r.buildArgs...)
	if !r.daemon {
		args = append(args, "--build-arg", markArg+"="+r.mark)
	}
	if r.network != "" {
		args = append(args, "--network", r.network)
	}
	if r.fresh || r.daemon {
		args = append(args, "--no-cache")
	}
	c := engineCommand(ctx, r.path, r.env, append(args, r.context())...)
	c.Stdout, c.Stderr = w, w // one pipe, so that lines keep their order
	if end := c.Cancel; !r.daemon {
		c.Cancel = func() error {
			// An engine that is stopped may remove what describes a step and not end it.
			if ids, err := r.containers(); err == nil {
				r.running, _ = r.steps(ids)
			}
			return end()
		}
	}
	if err := c.Start(); err != nil {
		return err
	}
	err := c.Wait()
	if ctx.Err() != nil {
		_ = unix.Kill(-c.Process.Pid, unix.SIGKILL) // an error means that all have ended
	}
	return err
}

// export writes the image as a file, and returns what it is called there.
func (r *engineRun) export(ctx context.Context) (string, error) {
	prefix, args := r.save(r.tag(), r.exported())
	if err := r.tool(ctx, r.path, args...); err != nil {
		return "", err
	}
	return prefix + r.exported(), nil
}

// tool runs a program to its end; its error has what it printed.
func (r *engineRun) tool(ctx context.Context, path string, args ...string) error {
	out, err := engineCommand(ctx, path, r.env, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(path), args[0], err, clip(string(bytes.TrimSpace(out))))
	}
	return nil
}

// clean removes what the engine has of the build. One that was stopped has left
// the step, its container and files.
func (r *engineRun) clean(ctx context.Context, failed bool) error {
	var errs []error
	if r.daemon {
		errs = append(errs, r.cleanDaemon(ctx))
	} else if failed {
		left, err := r.containers()
		errs = append(errs, err, r.endSteps(ctx, left))
		for _, id := range left {
			errs = append(errs, r.tool(ctx, r.path, append(slices.Clone(r.removeArgs), id)...))
		}
	}
	if !r.daemon {
		errs = append(errs, r.removeImage(ctx, "rmi"))
	}
	return errors.Join(append(errs, r.remove(ctx, r.dir))...)
}

// removeImage removes the image that was made, if there is one.
func (r *engineRun) removeImage(ctx context.Context, args ...string) error {
	if r.tool(ctx, r.path, append(slices.Clone(r.existsArgs), r.tag())...) != nil {
		return nil
	}
	return r.tool(ctx, r.path, append(args, r.tag())...)
}

// absentIsFine drops the error of removing what is not there, or is being removed.
func absentIsFine(err error) error {
	if err == nil {
		return nil
	}
	for _, s := range []string{"o such container", "o such image", "already in progress"} {
		if strings.Contains(err.Error(), s) {
			return nil
		}
	}
	return err
}

func (r *engineRun) remove(ctx context.Context, dir string) error {
	err := os.RemoveAll(dir)
	if err != nil && r.rootless { // files of other users inside
		err = r.tool(ctx, r.path, "unshare", "rm", "-rf", "--", dir)
	}
	return err
}

// maxEngineFile bounds a file that the engine has written about a container, in
// bytes.
const maxEngineFile = 4 << 20

// readEngine reads such a file; false when it has gone, or is of somebody else.
func readEngine(name string, to any) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEngineFile))
	return err == nil && json.Unmarshal(text, to) == nil
}

// containers are those of the build: they have the mark.
func (r *engineRun) containers() (ids []string, err error) {
	files, err := filepath.Glob(filepath.Join(r.graph, "*", "userdata", "buildah.json"))
	for _, name := range files {
		var about struct{ Args map[string]string }
		if readEngine(name, &about) && about.Args[markArg] == r.mark {
			ids = append(ids, filepath.Base(filepath.Dir(filepath.Dir(name))))
		}
	}
	return ids, err
}

// endSteps ends steps that run on and removes what describes them: those of
// containers, and those that ran when the build was stopped.
func (r *engineRun) endSteps(ctx context.Context, containers []string) error {
	if r.runtime == "" {
		return nil
	}
	steps, err := r.steps(containers)
	errs := []error{err}
	maps.Copy(steps, r.running)
	for id, dir := range steps {
		errs = append(errs, r.endStep(ctx, id), r.remove(ctx, dir))
	}
	return errors.Join(errs...)
}

// endStep ends the step that the runtime of containers knows as id, if it does.
func (r *engineRun) endStep(ctx context.Context, id string) error {
	path, args := r.runtime, []string{"delete", "--force", id}
	if r.rootless {
		// What the runtime knows may be elsewhere than where it looks by itself:
		// beside what the engine has there.
		root := filepath.Join(filepath.Dir(r.runRoot), filepath.Base(r.runtime))
		if _, err := os.Stat(filepath.Join(root, id)); err == nil {
			args = append([]string{"--root", root}, args...)
		}
		path, args = r.path, append([]string{"unshare", path}, args...)
	}
	err := r.tool(ctx, path, args...)
	// It was not created yet, or has ended.
	if err != nil && (strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "o such file")) {
		return nil
	}
	return err
}

// steps are the names that the runtime of containers has for the steps that run in
// containers, and the folders that describe them. Those are among the temporary ones
// while the steps run, and have their names. Their name of the machine is the
// beginning of the container's.
func (r *engineRun) steps(containers []string) (map[string]string, error) {
	found, err := filepath.Glob(filepath.Join(r.temporary, "buildah*", "config.json"))
	steps := map[string]string{}
	for _, f := range found {
		var about struct{ Hostname string }
		if readEngine(f, &about) && slices.ContainsFunc(containers, func(id string) bool { return len(id) > 12 && id[:12] == about.Hostname }) {
			dir := filepath.Dir(f)
			steps["buildah-"+filepath.Base(dir)] = dir
		}
	}
	return steps, err
}
