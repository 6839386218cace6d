package templates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// git fetches from repositories with the program git, which knows the user's
// credentials, proxies and certificates.
type git struct {
	program string
	tmp     string // folder for repositories that last as long as a fetch
}

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
	lsLine     = regexp.MustCompile(`^([0-9a-f]{40}(?:[0-9a-f]{24})?)\t(\S+)$`)
)

// command is git with nothing that asks, and no transport that runs programs. What
// it writes is bounded: a repository can be of any size.
func (g git) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	blocks := maxArchive / 512 * 2
	limited := append([]string{"-c", fmt.Sprintf(`ulimit -f %d; exec "$@"`, blocks), "sh", g.program,
		"-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.ext.allow=never"}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", limited...)
	cmd.Dir = dir
	ownSession(cmd)
	cmd.WaitDelay = 5 * time.Second // a helper of git that holds the pipes
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		// Those would make it work on another repository.
		return slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"}, name)
	}), "GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=file:git:http:https:ssh", "LC_ALL=C", "GIT_LFS_SKIP_SMUDGE=1")
	return cmd
}

// run returns the output of git; what it says on failure is in the error.
func (g git) run(ctx context.Context, dir, url string, args ...string) ([]byte, error) {
	cmd := g.command(ctx, dir, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, gitError(ctx, url, errs.String(), err)
	}
	return out.Bytes(), nil
}

// gitError tells what git said in one line, without the password of the address.
func gitError(ctx context.Context, url, said string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(said, "not found") && strings.Contains(said, "exec") {
		return &errdefs.Error{Code: "E2005", Op: "fetch template", Message: "git is not there", Suggestion: "install git, or give the address of an archive", Err: err}
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(said, url, redactURL(url))), "\n")
	line := lines[len(lines)-1]
	for _, l := range lines {
		if strings.HasPrefix(l, "fatal:") || strings.HasPrefix(l, "remote: ") && strings.Contains(l, "not found") {
			line = l
			break
		}
	}
	line = strings.TrimPrefix(strings.TrimPrefix(line, "fatal: "), "remote: ")
	if len(line) > 300 {
		line = line[:300]
	}
	lower := strings.ToLower(said)
	switch {
	case strings.Contains(lower, "could not read username"), strings.Contains(lower, "authentication failed"), strings.Contains(lower, "permission denied (publickey"):
		return &errdefs.Error{Code: "E2005", Op: "fetch template", Message: redactURL(url) + " is not there, or asks for credentials: " + line, Suggestion: "check the name, and git's credentials for it", Err: err}
	case strings.Contains(lower, "repository not found"), strings.Contains(lower, "does not appear to be a git repository"), strings.Contains(lower, "repository '") && strings.Contains(lower, "not found"):
		return errdefs.Wrap("E2001", "fetch template", redactURL(url)+": "+line, err)
	}
	return errdefs.Wrap("E2005", "fetch template", redactURL(url)+": "+line, err)
}

// refs is what a repository offers.
type refs struct {
	head string            // commit of the default branch
	all  map[string]string // full name → commit; of an annotated tag, what it is about
}

// list asks a repository for its refs.
func (g git) list(ctx context.Context, url string) (refs, error) {
	out, err := g.run(ctx, g.tmp, url, "ls-remote", "--", url)
	if err != nil {
		return refs{}, err
	}
	r := refs{all: map[string]string{}}
	for line := range strings.Lines(string(out)) {
		m := lsLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		if m[2] == "HEAD" {
			r.head = m[1]
		}
		r.all[strings.TrimSuffix(m[2], "^{}")] = m[1] // the line of what a tag is about follows
	}
	return r, nil
}

func (r refs) tags() []string {
	var out []string
	for name := range r.all {
		if tag, ok := strings.CutPrefix(name, "refs/tags/"); ok {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return out
}

// find returns the commit of a ref, and the tag when it was chosen by a version: the
// default branch for "", a range of versions, a tag, a branch. A version that is no
// tag is looked for as v1.2.3 too.
func (r refs) find(ref Ref, version string) (commit, tag string, err error) {
	rev := ref.Rev
	if isConstraint(rev) {
		version, rev = rev, ""
	}
	notFound := func(what string) error {
		e := &errdefs.Error{Code: "E2001", Op: "resolve template", Message: fmt.Sprintf("%s has no %s", redactURL(ref.URL), what)}
		var versions []string
		for _, t := range r.tags() {
			if versionOf(t, ref.Subdir) != "" {
				versions = append(versions, t)
			}
		}
		if len(versions) > 0 {
			e.Suggestion = "it has " + strings.Join(versions[max(0, len(versions)-8):], ", ")
		}
		return e
	}
	switch {
	case version != "":
		c, err := parseConstraint(version)
		if err != nil {
			return "", "", err
		}
		if tag = c.pick(r.tags(), ref.Subdir); tag == "" {
			return "", "", notFound("version " + version)
		}
		return r.all["refs/tags/"+tag], tag, nil
	case rev == "":
		if r.head == "" {
			return "", "", notFound("default branch")
		}
		return r.head, "", nil
	}
	for _, name := range []string{"refs/tags/" + rev, "refs/heads/" + rev, rev} {
		if commit := r.all[name]; commit != "" {
			return commit, strings.TrimPrefix(name, "refs/tags/"), nil
		}
	}
	if c, err := parseConstraint(rev); err == nil && c.high == "" {
		if tag := c.pick(r.tags(), ref.Subdir); tag != "" {
			return r.all["refs/tags/"+tag], tag, nil
		}
	}
	return "", "", notFound(fmt.Sprintf("ref %q", rev))
}

// fetch writes the files of a commit below root.
func (g git) fetch(ctx context.Context, url, commit string, root *os.Root) (links []string, err error) {
	dir, err := os.MkdirTemp(g.tmp, "git-")
	if err != nil {
		return nil, errdefs.Wrap("E2006", "write template cache", g.tmp, err)
	}
	defer os.RemoveAll(dir)
	format := "sha1"
	if len(commit) == 64 {
		format = "sha256"
	}
	if _, err := g.run(ctx, dir, url, "init", "-q", "--bare", "--template=", "--object-format="+format, "r"); err != nil {
		return nil, err
	}
	repo := filepath.Join(dir, "r")
	_, err = g.run(ctx, repo, url, "fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, commit)
	if err != nil && ctx.Err() == nil {
		// Not every server gives a commit by its name: take what it has names for.
		if _, again := g.run(ctx, repo, url, "fetch", "-q", "--no-tags", "--no-recurse-submodules", "--", url, "+refs/heads/*:refs/h/*", "+refs/tags/*:refs/t/*"); again != nil {
			return nil, again
		}
		if _, err = g.run(ctx, repo, url, "cat-file", "-e", commit+"^{commit}"); err != nil {
			return nil, errdefs.Wrap("E2001", "fetch template", fmt.Sprintf("%s has no commit %s", redactURL(url), commit), err)
		}
	}
	if err != nil {
		return nil, err
	}
	cmd := g.command(ctx, repo, "archive", "--format=tar", commit)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errdefs.Wrap("E2005", "fetch template", redactURL(url), err)
	}
	if err := cmd.Start(); err != nil {
		return nil, gitError(ctx, url, errs.String(), err)
	}
	links, err = extract(root, out)
	if err != nil {
		// It would wait for a reader.
		_ = cmd.Cancel()
		_ = cmd.Wait()
		return nil, errdefs.Wrap("E2006", "fetch template", redactURL(url), err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, gitError(ctx, url, errs.String(), err)
	}
	return links, nil
}
