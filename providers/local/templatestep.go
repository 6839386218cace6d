//go:build linux

package local

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// templatePrefix is where packages of Python and Node go over the tree of this
// machine, whose own places for them cannot be written. Its bin is first in PATH.
const templatePrefix = "/opt/template"

// copyArchive is the archive of a step that copies, while it is unpacked.
const copyArchive = "/tmp/.sandbox-copy.tar"

const opBuild = "build template"

// A buildStep is one step, checked.
type buildStep struct {
	text  string   // for people
	args  []string // program and arguments; after the copy arrived
	dir   string   // working directory; empty: the default
	copy  *model.Copy
	dest  string            // of copy, absolute
	place []providers.Place // that has to be there
	fetch bool              // it installs packages, which come from elsewhere
}

func refuseStep(n int, code errdefs.Code, message, suggestion string) error {
	return &errdefs.Error{Code: code, Op: opBuild, Message: fmt.Sprintf("step %d: %s", n, message), Suggestion: suggestion}
}

// script is a shell line that sees args as data.
func script(line string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", line, "sh"}, args...)
}

const (
	// The packages that this machine has can be imported too.
	pipHost = `set -e
P=` + templatePrefix + `
python3 -m pip --version >/dev/null || { echo "this machine has no pip for python3: install it (python3-pip), or use an image" >&2; exit 1; }
[ -x $P/bin/python3 ] || python3 -m venv --without-pip --system-site-packages $P
exec $P/bin/python3 -m pip install --no-input --no-cache-dir --disable-pip-version-check --root-user-action=ignore -- "$@"`
	pipImage = `exec python3 -m pip install --no-input --no-cache-dir --disable-pip-version-check -- "$@"`

	npmHost = `command -v npm >/dev/null || { echo "this machine has no npm: install it, or use an image" >&2; exit 1; }
exec npm install --global --prefix ` + templatePrefix + ` --cache /tmp/.npm-cache --no-audit --no-fund -- "$@"`
	npmImage = `exec npm install --global --no-audit --no-fund -- "$@"`

	apt = `set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends -- "$@"
rm -rf /var/lib/apt/lists/*`
)

// checkSteps turns the steps of a template into what is run.
func (b *templateBuild) checkSteps() error {
	for i, s := range b.m.Build {
		step, err := b.checkStep(i+1, s)
		if err != nil {
			return err
		}
		step.dir = b.m.Workdir
		b.steps = append(b.steps, step)
	}
	return nil
}

func (b *templateBuild) checkStep(n int, s model.Step) (buildStep, error) {
	kinds := 0
	for _, set := range []bool{len(s.Apt) > 0, len(s.Pip) > 0, len(s.Npm) > 0, s.Run != "", s.Copy != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return buildStep{}, refuseStep(n, "E2004", fmt.Sprintf("%d kinds of work; a step has exactly one", kinds), "")
	}
	for _, name := range slices.Concat(s.Apt, s.Pip, s.Npm) {
		if name == "" || name[0] == '-' || strings.ContainsAny(name, "\x00\n") {
			return buildStep{}, refuseStep(n, "E2004", fmt.Sprintf("%q is not the name of a package", clip(name)), "")
		}
	}
	onHost := func(host, image string) string {
		if b.host {
			return host
		}
		return image
	}
	switch {
	case s.Run != "":
		return buildStep{text: "run " + firstLine(s.Run), args: []string{cmp.Or(b.m.Shell, "/bin/sh"), "-c", s.Run}}, nil
	case len(s.Pip) > 0:
		return buildStep{text: "pip install " + strings.Join(s.Pip, " "), args: script(onHost(pipHost, pipImage), s.Pip...), fetch: true}, nil
	case len(s.Npm) > 0:
		return buildStep{text: "npm install " + strings.Join(s.Npm, " "), args: script(onHost(npmHost, npmImage), s.Npm...), fetch: true}, nil
	case len(s.Apt) > 0:
		if b.mapping == mapSingle {
			return buildStep{}, refuseStep(n, "E8004", "system packages need root and several users inside, and your sandboxes have the user "+defaultUser+" only: there is no newuidmap with sub-ids for you",
				"install newuidmap and give yourself sub-ids in /etc/subuid and /etc/subgid, or run as root")
		}
		if b.host {
			return buildStep{}, refuseStep(n, "E8004", "system packages cannot be added to the tree of this machine, which sandboxes see without the records of its package manager",
				"give the template an image as its base, or install them on this machine")
		}
		return buildStep{text: "apt install " + strings.Join(s.Apt, " "), args: script(apt, s.Apt...), fetch: true}, nil
	}
	return b.checkCopy(n, s.Copy)
}

func (b *templateBuild) checkCopy(n int, c *model.Copy) (buildStep, error) {
	step := buildStep{text: "copy " + c.Src + " to " + c.Dest, copy: c, dest: c.Dest}
	if b.req.Files == nil {
		return step, refuseStep(n, "E2011", "the template copies "+c.Src+", and there are no files to copy from", "")
	}
	if !fs.ValidPath(path.Clean(c.Src)) || strings.ContainsRune(c.Dest, 0) || c.Dest == "" {
		return step, refuseStep(n, "E2004", fmt.Sprintf("copy %q to %q: the source is a path in the folder of the template", clip(c.Src), clip(c.Dest)), "")
	}
	if !path.IsAbs(step.dest) {
		step.dest = b.workDir() + "/" + step.dest
	}
	fi, err := fs.Lstat(b.req.Files, path.Clean(c.Src))
	if err != nil {
		return step, refuseStep(n, "E2004", "copy "+clip(c.Src)+": "+err.Error(), "")
	}
	into := strings.HasSuffix(step.dest, "/")
	step.dest = path.Clean(step.dest)
	into = into || step.dest == path.Clean(b.workDir())
	if !fi.IsDir() && into {
		step.dest = path.Join(step.dest, path.Base(path.Clean(c.Src)))
	}
	if b.host {
		p := providers.Place{Path: step.dest, Dir: true}
		if !fi.IsDir() {
			p.Path = path.Dir(step.dest)
		}
		if !slices.Contains(scratchPlaces, p.Path) {
			step.place = append(step.place, p)
		}
	}
	step.args = script(`set -e
tar -xof "$1" -C /
rm -f "$1"`, copyArchive)
	return step, nil
}

func firstLine(s string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" {
		line += " …"
	}
	return clip(line)
}

// copyTime is that of all files that are copied: when a file was changed says
// nothing about its content.
var copyTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// archive writes what a step copies, with the names that it has inside. The same
// content gives the same bytes. Links are copied as links; what is neither file,
// directory nor link is left out.
func (s *buildStep) archive(files fs.FS, w io.Writer) error {
	out := tar.NewWriter(w)
	src := path.Clean(s.copy.Src)
	err := fs.WalkDir(files, src, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := fs.Lstat(files, name)
		if err != nil {
			return err
		}
		at := path.Join(s.dest, strings.TrimPrefix(strings.TrimPrefix(name, src), "/"))
		if src == "." {
			at = path.Join(s.dest, name)
		}
		h := &tar.Header{Format: tar.FormatPAX, Name: at[1:], Mode: 0o644, ModTime: copyTime}
		switch {
		case fi.IsDir():
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, h.Name+"/", 0o755
			if at == "/" {
				return nil
			}
		case fi.Mode()&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = fs.ReadLink(files, name); err != nil {
				return err
			}
		case fi.Mode().IsRegular():
			h.Typeflag, h.Size = tar.TypeReg, fi.Size()
			if fi.Mode()&0o100 != 0 {
				h.Mode = 0o755
			}
		default:
			return nil
		}
		if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(out, f, h.Size)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// keys are the names of the results of the steps: each depends on all that comes
// before it. The last one is that of the whole.
func (b *templateBuild) chooseKeys() error {
	add := b.sum
	key, err := add(b.baseKey, b.mapping, b.env(), b.workDir(), b.user(), b.m.Shell)
	if err != nil {
		return err
	}
	for i := range b.steps {
		s := &b.steps[i]
		content := ""
		if s.copy != nil {
			sum := sha256.New()
			if err := s.archive(b.req.Files, sum); err != nil {
				return refuseStep(i+1, "E2004", "copy "+clip(s.copy.Src)+": "+err.Error(), "")
			}
			content = hex.EncodeToString(sum.Sum(nil))
			b.copied = append(b.copied, content)
		} else {
			b.copied = append(b.copied, "")
		}
		if key, err = add(key, s.args, s.dest, s.place, content); err != nil {
			return err
		}
		b.keys = append(b.keys, key)
	}
	b.saved.Digest, err = add(key, b.m)
	return err
}

func (b *templateBuild) sum(before string, parts ...any) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "template 1\n%s\n", before)
	return sumJSON(sum, parts)
}

func sumJSON(sum hash.Hash, parts []any) (string, error) {
	for _, p := range parts {
		b, err := json.Marshal(p) // maps are written in order
		if err != nil {
			return "", err
		}
		sum.Write(append(b, '\n'))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// hostKey identifies the tree of this machine, as far as a build depends on it.
func hostKey() string {
	sum := sha256.New()
	b, err := os.ReadFile("/usr/lib/os-release")
	fmt.Fprintf(sum, "host %q %v\n", b, err)
	for _, dir := range []string{"/usr/bin", "/usr/lib"} { // packages that come, go or change leave a trace
		if fi, err := os.Stat(dir); err == nil {
			fmt.Fprintln(sum, dir, fi.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// hostEnv is what a template over the tree of this machine adds to env, which
// wins but for PATH.
func hostEnv(env map[string]string) map[string]string {
	out := map[string]string{
		"NODE_PATH":         templatePrefix + "/lib/node_modules",
		"NPM_CONFIG_PREFIX": templatePrefix,
	}
	for k, v := range env {
		out[k] = v
	}
	out["PATH"] = templatePrefix + "/bin:" + cmp.Or(env["PATH"], process.DefaultPath)
	return out
}
