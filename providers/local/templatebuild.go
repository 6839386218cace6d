//go:build linux

package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

var _ providers.TemplateBuilder = (*Provider)(nil)

// baseTemplate is the template that every provider has: the tree of this machine.
const baseTemplate = "base"

// templateBuild is one build.
type templateBuild struct {
	p       *Provider
	t       *tree
	req     providers.TemplateBuild
	m       *model.Template
	mapping mapKind
	host    bool // over the tree of this machine
	root    savedRoot
	parent  *savedTemplate // nil: none
	baseKey string
	config  ImageConfig
	network *providers.NetworkPolicy
	steps   []buildStep
	keys    []string // one for each step
	copied  []string // digests of what the steps copy

	engineSteps int // there are, as an engine says, which takes no steps

	file  string // of the build that runs, in templates/, without .json
	saved savedTemplate
}

// BuildTemplate builds a template into layers of files. Each step runs in a
// sandbox of its own that starts with what the steps before have left, as root
// inside where the machine lets sandboxes have several users, and with no more
// capabilities than CHOWN, FOWNER, DAC_OVERRIDE, SETUID and SETGID within it.
//
// A step that was done before, by any build, with the same base, environment,
// copied files and steps before it, is not run again. Builds of the same content
// wait for each other, in other processes too.
//
// A template with a Dockerfile is built by an engine of this machine, which does
// not keep to any of this, and its image is taken over. The image is not built again
// while the Dockerfile and the files are the same.
//
// Errors: E2004 for a template that makes no sense, E8004 for what cannot be
// built here, E7010 for a step that fails. After an error, or when ctx ends,
// nothing is left of the build.
func (p *Provider) BuildTemplate(ctx context.Context, req providers.TemplateBuild) (_ *providers.Template, err error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx, opBuild)
	}
	defer func() { err = orCancelled(ctx, opBuild, err) }()
	t, done, err := p.begin(ctx, opBuild)
	if err != nil {
		return nil, err
	}
	defer done()
	b := &templateBuild{p: p, t: t, req: req, m: req.Model, mapping: mappingKind()}
	if b.byEngine() {
		return b.buildByEngine(ctx)
	}
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	lock, err := b.lockKey(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = t.templates.remove(keyPrefix + b.saved.Digest) // before it is free, so that nobody gets a removed one
		lock.Close()
	}()
	if s := b.builtBefore(); s != nil {
		for i, step := range b.steps {
			b.tell(providers.BuildEvent{Kind: providers.BuildCached, Step: i + 1, Text: step.text})
		}
		b.tell(providers.BuildEvent{Kind: providers.BuildDone})
		return s.public(), nil
	}
	start := time.Now()
	if err := b.run(ctx); err != nil {
		return nil, err
	}
	b.tell(providers.BuildEvent{Kind: providers.BuildDone, Took: time.Since(start)})
	return b.saved.public(), nil
}

func (b *templateBuild) tell(e providers.BuildEvent) {
	if b.req.Progress != nil {
		e.Steps = max(b.engineSteps, len(b.steps))
		b.req.Progress(e)
	}
}

// checkNames refuses names and values that cannot be.
func (b *templateBuild) checkNames() error {
	m := b.m
	switch {
	case m == nil || m.Name == "" || len(m.Name) > maxNameBytes:
		return &errdefs.Error{Code: "E2004", Op: opBuild, Message: "the template has no name, or one that is too long"}
	case m.Name == baseTemplate:
		return &errdefs.Error{Code: "E2004", Op: opBuild, Message: "the name base is that of the tree of this machine", Suggestion: "give the template another name"}
	}
	return errors.Join(checkEnv(m.Env), checkUser(m.User))
}

// check finds out what there is to do, and refuses what cannot be.
func (b *templateBuild) check(ctx context.Context) error {
	if err := b.checkNames(); err != nil {
		return err
	}
	m := b.m
	b.network = b.req.Network
	if b.network == nil {
		b.network = networkPolicy(m.BuildNetwork)
	}
	if _, _, err := networkMode(b.network); err != nil {
		return err
	}
	if err := b.findBase(ctx); err != nil {
		return err
	}
	b.host = b.root.Image == ""
	if err := b.checkSteps(); err != nil {
		return err
	}
	whole := *b.m
	if b.parent != nil {
		whole.Build = slices.Concat(b.parent.Model.Build, b.m.Build)
	}
	b.saved.Model, b.saved.Root, b.saved.CreatedAt = &whole, b.root, time.Now().Round(0)
	return b.chooseKeys()
}

// findBase resolves what the template starts from.
func (b *templateBuild) findBase(ctx context.Context) error {
	base := b.m.Base
	switch {
	case base.Image != "" && base.From != "":
		return &errdefs.Error{Code: "E2004", Op: opBuild, Message: "the base is an image and another template; it can be one of them"}
	case base.Image != "" && !base.Host:
		img, err := b.p.images.pull(ctx, base.Image)
		if err != nil {
			return err
		}
		b.root = savedRoot{Image: base.Image, Digest: img.Digest, Layers: img.Layers}
		b.config, b.baseKey = img.Config, img.Digest
	case base.From == "" || base.From == baseTemplate:
		b.baseKey = hostKey()
	default:
		s, err := b.t.template(opBuild, base.From)
		if err != nil {
			return err
		}
		b.parent, b.root, b.baseKey = s, s.Root, "template "+s.Digest
		m := *b.m // what the parent says holds where this one says nothing
		m.Env = maps.Clone(s.Model.Env)
		if m.Env == nil {
			m.Env = map[string]string{}
		}
		maps.Copy(m.Env, b.m.Env)
		m.Workdir, m.User = cmp.Or(m.Workdir, s.Model.Workdir), cmp.Or(m.User, s.Model.User)
		b.m = &m
	}
	return nil
}

// workDir is where steps run and relative destinations lie.
func (b *templateBuild) workDir() string {
	return cmp.Or(b.m.Workdir, b.config.WorkingDir, "/home/user")
}

// user owns the working directory.
func (b *templateBuild) user() string { return cmp.Or(b.m.User, b.config.User, defaultUser) }

func (b *templateBuild) env() map[string]string {
	if b.host {
		return hostEnv(b.m.Env)
	}
	return b.m.Env
}

// networkPolicy reads what a template says: a mode, or rules between commas.
// Empty is nil.
func networkPolicy(text string) *providers.NetworkPolicy {
	switch text {
	case "":
		return nil
	case netNone, netLoopback, netHost, "all":
		return &providers.NetworkPolicy{Mode: text}
	}
	n := &providers.NetworkPolicy{Mode: netList}
	for rule := range strings.SplitSeq(text, ",") {
		n.Allow = append(n.Allow, strings.TrimSpace(rule))
	}
	return n
}

// lockKey waits until nobody else builds the same.
func (b *templateBuild) lockKey(ctx context.Context) (*os.File, error) {
	told := false
	for {
		f, err := b.t.templates.tryLock(keyPrefix + b.saved.Digest)
		if err == nil || !errors.Is(err, errBusy) {
			return f, stateError(opBuild, "lock the build", err)
		}
		if !told {
			told = true
			b.tell(providers.BuildEvent{Kind: providers.BuildWaiting})
		}
		select {
		case <-ctx.Done():
			return nil, cancelled(ctx, opBuild)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// builtBefore returns the template when it is here already, as a whole.
func (b *templateBuild) builtBefore() *savedTemplate {
	if b.req.Fresh {
		return nil
	}
	s, err := b.t.readTemplate(templateFile(b.m.Name))
	if err != nil || s.Digest != b.saved.Digest || !b.t.hasLayers(s.files().Layers) {
		return nil
	}
	return s
}

func (t *tree) hasLayers(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !t.hasLayer(n) })
}

// run does the steps and gives the result its name.
func (b *templateBuild) run(ctx context.Context) (err error) {
	b.file = buildPrefix + randomText(12)
	lock, err := b.t.templates.newLock(b.file + fileLocked)
	if err != nil {
		return stateError(opBuild, "begin the build", err)
	}
	defer lock.Close()
	defer func() {
		// Also when ctx has ended.
		cerr := b.finish(context.WithoutCancel(ctx), err == nil)
		err = stateError(opBuild, "keep template "+b.m.Name, errors.Join(err, cerr))
	}()
	if err := b.begin(ctx); err != nil {
		return err
	}
	for i := range b.steps {
		if err := b.step(ctx, i); err != nil {
			return err
		}
	}
	return b.lookForPrograms(ctx)
}

// lookForPrograms makes sure that the result has the programs that the template
// requires.
func (b *templateBuild) lookForPrograms(ctx context.Context) error {
	if len(b.m.Requires) == 0 {
		return ctx.Err()
	}
	var missing []string
	s := buildStep{args: script(`for name; do command -v -- "$name" >/dev/null || printf '%s\n' "$name"; done`, b.m.Requires...)}
	if err := b.do(ctx, &s, "", func(name string) { missing = append(missing, name) }, ""); err != nil {
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	return &errdefs.Error{Code: "E7010", Op: opBuild + " " + b.m.Name, Message: "programs that it requires are not there: " + strings.Join(missing, ", "),
		Suggestion: "install them in a step, or below /usr of this machine where the base is its tree"}
}

// begin writes down that the base is used, and makes the working directory.
func (b *templateBuild) begin(ctx context.Context) error {
	err := b.locked(ctx, func() error {
		if b.parent != nil && len(b.parent.Steps) > 0 {
			last := b.parent.Steps[len(b.parent.Steps)-1]
			if !b.t.hasLayers(last.Layers) {
				return &errdefs.Error{Code: "E2001", Op: opBuild, Message: "files of template " + b.m.Base.From + " are not here any more", Suggestion: "build it again"}
			}
			b.saved.Steps = append(b.saved.Steps, last)
		}
		return b.save(b.file + fileJSON)
	})
	if err != nil {
		return err
	}
	return b.makeWorkdir(ctx)
}

// locked calls f with the lock of the layers.
func (b *templateBuild) locked(ctx context.Context, f func() error) error {
	lock, err := b.t.lockLayers(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	return f()
}

// save writes what there is of the result. The lock of the layers is held.
func (b *templateBuild) save(file string) error {
	text, err := json.Marshal(&b.saved)
	if err == nil && len(text) > maxTemplateFile {
		err = &errdefs.Error{Code: "E2004", Op: opBuild, Message: fmt.Sprintf("the template takes %d bytes; at most %d", len(text), maxTemplateFile)}
	}
	if err == nil {
		err = b.t.templates.writeSynced(file, text)
	}
	return err
}

// finish gives the result its name, or removes it.
func (b *templateBuild) finish(ctx context.Context, good bool) error {
	err := b.locked(ctx, func() (err error) {
		if good {
			err = b.save(templateFile(b.m.Name))
		}
		for _, n := range []string{b.file + fileJSON, b.file + fileLocked} {
			if rerr := b.t.templates.remove(n); rerr != unix.ENOENT {
				err = errors.Join(err, rerr)
			}
		}
		return err
	})
	return errors.Join(err, b.t.sweepLayers(ctx)) // of what failed, or was replaced
}

// step does a step, or takes what it left before.
func (b *templateBuild) step(ctx context.Context, i int) error {
	s := &b.steps[i]
	event := providers.BuildEvent{Step: i + 1, Text: s.text}
	if !b.req.Fresh {
		found, err := b.reuse(ctx, b.keys[i])
		if err != nil {
			return err
		}
		if found {
			event.Kind = providers.BuildCached
			b.tell(event)
			return nil
		}
	}
	event.Kind = providers.BuildStarted
	b.tell(event)
	start := time.Now()
	var last []string
	err := b.do(ctx, s, b.copied[i], func(line string) {
		last = append(last, line)
		if len(last) > lastLines {
			last = last[1:]
		}
		b.tell(providers.BuildEvent{Kind: providers.BuildOutput, Step: i + 1, Text: line})
	}, b.keys[i])
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return failedStep(b.m.Name, i+1, len(b.steps), s.text, last, err, b.hintNetwork(s))
	}
	event.Kind, event.Took = providers.BuildDone, time.Since(start)
	b.tell(event)
	return nil
}

// lastLines is how many lines of a step that failed its error has.
const lastLines = 20

// stepStatus says that a step ran, and how it ended.
type stepStatus string

// Error is how the step ended.
func (s stepStatus) Error() string { return string(s) }

// hintNetwork is what may help a step that installs packages and could reach
// nothing.
func (b *templateBuild) hintNetwork(s *buildStep) string {
	mode, _, _ := networkMode(b.network)
	if !s.fetch || mode != netNone && mode != netLoopback {
		return ""
	}
	return "the build reaches nothing, as no network is named for it: write build_network in the template (build.network in the nested form), or give --network to sandbox template build"
}

func failedStep(name string, n, steps int, text string, last []string, err error, hint string) error {
	se := &providers.BuildStepError{Step: n, Steps: steps, Text: text, Last: last, Err: err}
	if status, ok := err.(stepStatus); ok {
		se.Status, se.Err = string(status), nil
	}
	return &errdefs.Error{Code: "E7010", Op: opBuild + " " + name, Message: fmt.Sprintf("step %d of %d", n, steps), Suggestion: hint, Err: se}
}

// reuse looks for a step among everything that was built.
func (b *templateBuild) reuse(ctx context.Context, key string) (found bool, err error) {
	err = b.locked(ctx, func() error {
		err := b.t.eachTemplate(func(_ string, s *savedTemplate, err error) {
			if err != nil || found {
				return
			}
			i := slices.IndexFunc(s.Steps, func(st builtStep) bool { return st.Key == key })
			if i >= 0 && b.t.hasLayers(s.Steps[i].Layers) {
				b.saved.Steps, found = append(b.saved.Steps, s.Steps[i]), true
			}
		})
		if err == nil && found {
			err = b.save(b.file + fileJSON)
		}
		return err
	})
	return found, err
}
