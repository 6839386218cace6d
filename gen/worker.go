package gen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// WorkerOptions say which worker to build.
type WorkerOptions struct {
	Target string // platform of the sandboxes, linux/GOARCH; empty: linux on the processor of this machine
	Output string // file to write, relative to Options.Dir; empty: PROGRAM-linux-GOARCH
}

// BuildWorker builds the main package that the pattern names as an executable
// for sandboxes of another platform: cgo is off, unless the target is this
// platform and sandboxed functions need it. Nothing is built when there are
// diagnostics, which are about functions that the worker would lack. An error
// is what the go command said.
func BuildWorker(ctx context.Context, opts *Options, w WorkerOptions) ([]Diagnostic, error) {
	if w.Target == "" {
		w.Target = "linux/" + runtime.GOARCH
	}
	goos, goarch, ok := strings.Cut(w.Target, "/")
	if !ok || goos != "linux" || goarch == "" || strings.ContainsAny(goarch, `/\`) {
		return nil, fmt.Errorf("target %s: sandboxes run linux; write linux/amd64 or linux/arm64", show(w.Target))
	}
	g, err := newGenerator(opts)
	if err != nil {
		return nil, err
	}
	if len(g.opts.Patterns) != 1 {
		return nil, errors.New("-worker builds one main package")
	}
	env := g.opts.Env
	if env == nil {
		env = os.Environ()
	}
	env = append(env[:len(env):len(env)], "GOOS="+goos, "GOARCH="+goarch)
	build := func(verb string, env []string, args ...string) (string, error) {
		args = append([]string{verb}, args...)
		if o := g.opts; o.Tags != "" {
			args = append(args, "-tags="+o.Tags)
		}
		if o := g.opts; o.Mod != "" {
			args = append(args, "-mod="+o.Mod)
		}
		cmd := exec.CommandContext(ctx, "go", append(args, "--", g.opts.Patterns[0])...)
		cmd.Dir, cmd.Env = g.opts.Dir, append(env, "PWD="+g.opts.Dir)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", verb, err, strings.TrimSpace(stderr.String()))
		}
		return stdout.String(), nil
	}
	// One line for each package of the program: its name for those on the command
	// line, and the folder of those that use cgo.
	list, err := build("list", append(env, "CGO_ENABLED=1"), "-deps",
		"-f={{if not .DepOnly}}{{.Name}} {{.ImportPath}}{{end}}\t{{if and .CgoFiles (not .Standard)}}{{.Dir}}{{end}}")
	if err != nil {
		return nil, err
	}
	name := ""
	for line := range strings.Lines(list) {
		root, dir, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if root != "" {
			kind, importPath, _ := strings.Cut(root, " ")
			if name != "" || kind != "main" {
				return nil, fmt.Errorf("%s is not one main package", g.opts.Patterns[0])
			}
			name = path.Base(importPath)
		}
		if dir != "" {
			if err := g.needCgo(dir); err != nil {
				return nil, err
			}
		}
	}
	if d := g.report.sorted(); len(d) > 0 {
		if goos != runtime.GOOS || goarch != runtime.GOARCH {
			return d, nil
		}
	} else {
		env = append(env, "CGO_ENABLED=0")
	}
	if w.Output == "" {
		w.Output = name + "-" + goos + "-" + goarch
	}
	_, err = build("build", env, "-o="+absolute(g.opts.Dir, filepath.ToSlash(w.Output)))
	return nil, err
}

// needCgo reports the annotated functions of a folder with files that need cgo.
func (g *generator) needCgo(dir string) error {
	quiet := &reporter{fset: g.fset, dir: g.report.dir}
	d, err := findDir(quiet, dir)
	if err != nil {
		return err
	}
	for _, p := range d.found {
		if p.kind() == directive.Package || p.file.test {
			continue
		}
		l := p.lines[0]
		pos, end, what := l.Pos, token.NoPos, string(l.Kind)
		if p.fn != nil {
			pos, end, what = p.fn.Name.Pos(), p.fn.Name.End(), p.fn.Name.Name
		}
		g.report.add(pos, end, "G033", `%s can't be in a package that imports "C" with GOOS or GOARCH other than the sandbox's`, what)
	}
	return nil
}
