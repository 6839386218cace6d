//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// probeEnd is how long an engine has to say that it works.
const probeEnd = 20 * time.Second

// engine is a program of this machine that builds Dockerfiles.
type engine struct {
	engineKind
	path     string
	graph    string // folder of its containers; none with a daemon
	runRoot  string // folder of what runs; none with a daemon
	runtime  string // program that runs the steps; empty: not known
	rootless bool   // works in a user namespace
}

// engineKind is what is known of an engine before it is asked.
type engineKind struct {
	name       string
	probe      []string // asks whether it works
	buildArgs  []string // beside those that all have
	removeArgs []string // remove a container
	existsArgs []string // ask for an image
	daemon     bool     // another process builds, maybe on another machine

	// learn takes what the probe has printed.
	learn func(e *engine, out []byte) error
	// save are the arguments that write an image to a path, and with what its name
	// begins there.
	save func(image, to string) (prefix string, args []string)
}

// engineKinds are in the order in which they are looked for.
var engineKinds = []engineKind{
	{
		name:       "podman",
		probe:      []string{"info", "--format", "json"},
		buildArgs:  []string{"--layers=false", "--format", "oci"},
		removeArgs: []string{"rm", "--force"},
		existsArgs: []string{"image", "exists"},
		learn:      learnPodman,
		save: func(image, to string) (string, []string) {
			return "oci:", []string{"save", "--quiet", "--format", "oci-dir", "--output", to, image}
		},
	}, {
		name:       "buildah",
		probe:      []string{"info"},
		buildArgs:  []string{"--layers=false", "--format", "oci"},
		removeArgs: []string{"rm"},
		existsArgs: []string{"inspect", "--type", "image"},
		learn:      learnBuildah,
		save: func(image, to string) (string, []string) {
			return "oci:", []string{"push", "--quiet", image, "oci:" + to}
		},
	}, {
		name:       "docker",
		probe:      []string{"version", "--format", "{{json .Server}}"},
		existsArgs: []string{"image", "inspect"},
		daemon:     true,
		learn:      learnDocker,
		save: func(image, to string) (string, []string) {
			return "docker-archive:", []string{"save", "--output", to, image}
		},
	},
}

func engineNames() (names []string) {
	for _, k := range engineKinds {
		names = append(names, k.name)
	}
	return names
}

// findEngine looks for the engine that a build asks for. The environment, and with
// it the settings of the engine, are those of this process.
func findEngine(ctx context.Context, want string) (*engine, error) {
	const instead = ", or declare base and build in the template instead"
	kinds := engineKinds
	if want != "" && want != "auto" {
		kinds = nil
		for _, k := range engineKinds {
			if k.name == want {
				kinds = []engineKind{k}
			}
		}
		if kinds == nil {
			return nil, &errdefs.Error{Code: "E2011", Op: opBuild, Message: fmt.Sprintf("engine %q is unknown", clip(want)),
				Suggestion: "name " + orList(engineNames()) + ", or auto"}
		}
	}
	var broken []string
	var errs []error
	var fix string
	for _, k := range kinds {
		path, err := exec.LookPath(k.name)
		if err != nil {
			continue
		}
		e, err := k.ask(ctx, path)
		if err == nil {
			return e, nil
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx, opBuild)
		}
		if fix == "" {
			fix = "make " + k.name + " " + k.probe[0] + " work"
		}
		broken, errs = append(broken, k.name), append(errs, fmt.Errorf("%s: %w", k.name, err))
	}
	if broken != nil {
		return nil, &errdefs.Error{Code: "E8004", Op: opBuild, Message: "a Dockerfile is built by an engine, and none works here: not " + strings.Join(broken, ", not "),
			Err: errors.Join(errs...), Suggestion: fix + instead}
	}
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return nil, &errdefs.Error{Code: "E8004", Op: opBuild, Message: "a Dockerfile is built by " + orList(names) + ", which is not there", Err: exec.ErrNotFound,
		Suggestion: "install " + names[0] + instead}
}

func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// ask finds out whether the program works.
func (k *engineKind) ask(ctx context.Context, path string) (*engine, error) {
	ctx, cancel := context.WithTimeout(ctx, probeEnd)
	defer cancel()
	out, err := engineCommand(ctx, path, nil, k.probe...).Output()
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%w: %s", err, clip(strings.TrimSpace(string(ee.Stderr))))
	}
	if err != nil {
		return nil, err
	}
	e := &engine{engineKind: *k, path: path}
	if err := k.learn(e, out); err != nil {
		return nil, fmt.Errorf("read what %s %s prints: %w", k.name, k.probe[0], err)
	}
	return e, nil
}

var errNoStore = errors.New("it names no folder of its store")

func learnPodman(e *engine, out []byte) error {
	var info struct {
		Host struct {
			OCIRuntime struct{ Path string }
			Security   struct{ Rootless bool }
		}
		Store struct{ GraphRoot, GraphDriverName, RunRoot string }
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return err
	}
	if info.Store.GraphRoot == "" {
		return errNoStore
	}
	e.graph, e.runRoot = filepath.Join(info.Store.GraphRoot, info.Store.GraphDriverName+"-containers"), info.Store.RunRoot
	e.runtime, e.rootless = info.Host.OCIRuntime.Path, info.Host.Security.Rootless
	return nil
}

func learnBuildah(e *engine, out []byte) error {
	var info struct {
		Host struct {
			OCIRuntime any // a name; absent in early versions
			Rootless   bool
		}
		Store struct{ GraphRoot, GraphDriverName, RunRoot string }
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return err
	}
	if info.Store.GraphRoot == "" {
		return errNoStore
	}
	e.graph, e.runRoot = filepath.Join(info.Store.GraphRoot, info.Store.GraphDriverName+"-containers"), info.Store.RunRoot
	e.rootless = info.Host.Rootless
	name := os.Getenv("BUILDAH_RUNTIME")
	if name == "" {
		name, _ = info.Host.OCIRuntime.(string)
	}
	if name != "" {
		e.runtime, _ = exec.LookPath(name) // without it only a step that was stopped is left to end by itself
	}
	return nil
}

func learnDocker(_ *engine, out []byte) error {
	var server *struct {
		Version    string
		Components []struct{ Name string }
	}
	if err := json.Unmarshal(out, &server); err != nil {
		return err
	}
	if server == nil || server.Version == "" {
		return errors.New("no daemon answers")
	}
	for _, c := range server.Components {
		if strings.HasPrefix(c.Name, "Podman") { // 4.3 takes a build without network, and gives it one
			return errors.New("podman answers, which does not keep to the network of a build that docker asks for")
		}
	}
	return nil
}
