package templates

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// DefaultImage is what a Dockerfile starts from when the template names no image.
const DefaultImage = "debian:12-slim"

// Dockerfile writes what an engine builds for a template: the folder's own
// Dockerfile where there is one, otherwise one that says what the template says.
// Equal templates give equal bytes. Steps keep their order; environment and working
// folder hold for them too, and the user only after them.
//
// A template that is based on another one must be resolved first. What no
// Dockerfile can say (a line break in a variable) is E2004.
func Dockerfile(t *model.Template) (string, error) {
	if t.Dockerfile != "" {
		return t.Dockerfile, nil
	}
	if t.Base.From != "" {
		return "", &errdefs.Error{Code: "E2004", Op: "write Dockerfile", Message: fmt.Sprintf("template %s is based on %s, which is not resolved", t.Name, t.Base.From), Suggestion: "call Resolve"}
	}
	if err := Validate(t); err != nil {
		return "", err
	}
	d := &dockerfile{shell: "/bin/sh"}
	image := t.Base.Image
	if image == "" {
		image = DefaultImage
	}
	d.line("FROM %s", image)
	if t.Shell != "" {
		d.shell = t.Shell
		d.line("SHELL %s", d.list(t.Shell, "-c"))
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		if strings.ContainsAny(t.Env[k], "\n\r") {
			return "", errdefs.New("E2004", "write Dockerfile", fmt.Sprintf("variable %s holds a line break", k))
		}
		d.line("ENV %s=%s", k, envQuote(t.Env[k]))
	}
	if t.User != "" && len(t.Build) > 0 {
		d.line("USER root") // the image's own user may not be allowed to install
	}
	if t.Workdir != "" {
		d.line("WORKDIR %s", wordEscape(t.Workdir))
	}
	for _, s := range t.Build {
		if err := d.step(s); err != nil {
			return "", err
		}
	}
	if t.User != "" {
		d.line("USER %s", t.User)
	}
	for _, p := range slices.Sorted(slices.Values(t.Ports)) {
		d.line("EXPOSE %d", p)
	}
	if h := t.Health; h != nil {
		d.line("HEALTHCHECK --interval=%s --timeout=%s --retries=%d CMD %s",
			cmp.Or(h.Interval, 30*time.Second), cmp.Or(h.Timeout, 10*time.Second), cmp.Or(h.Retries, 3), d.list(d.shell, "-c", h.Command))
	}
	if t.Start != "" {
		d.line("CMD %s", d.list(d.shell, "-c", t.Start))
	}
	return d.b.String(), nil
}

type dockerfile struct {
	b     strings.Builder
	shell string
}

func (d *dockerfile) line(format string, args ...any) {
	fmt.Fprintf(&d.b, format+"\n", args...)
}

// list writes the JSON form of an instruction.
func (d *dockerfile) list(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(w); err != nil {
			panic(err) // text always has a JSON form
		}
		out[i] = strings.TrimSuffix(b.String(), "\n")
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (d *dockerfile) step(s model.Step) error {
	switch {
	case s.Apt != nil:
		d.line("RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends %s && rm -rf /var/lib/apt/lists/*", words(s.Apt))
	case s.Pip != nil:
		// Debian's pip refuses to touch its own folder unless told; older ones do not know the variable.
		d.line("RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --no-cache-dir --no-input --disable-pip-version-check %s", words(s.Pip))
	case s.Npm != nil:
		d.line("RUN npm install --global --no-audit --no-fund %s && npm cache clean --force", words(s.Npm))
	case s.Copy != nil:
		if strings.Contains(s.Copy.Src, `\`) {
			return errdefs.New("E2004", "write Dockerfile", fmt.Sprintf("src %q holds a backslash", s.Copy.Src))
		}
		d.line("COPY %s", d.list(globEscape(s.Copy.Src), wordEscape(s.Copy.Dest)))
	default:
		d.run(s.Run)
	}
	return nil
}

// run writes a shell line as it is where a Dockerfile can, and as a list where it
// would read it in another way: lines, flags, lists, here-documents, continuations.
func (d *dockerfile) run(line string) {
	line = strings.TrimSpace(line)
	if strings.ContainsAny(line, "\n\r") || strings.HasPrefix(line, "[") || strings.HasPrefix(line, "-") || strings.Contains(line, "<<") || strings.HasSuffix(line, `\`) {
		d.line("RUN %s", d.list(d.shell, "-c", line))
		return
	}
	d.line("RUN %s", line)
}

// words writes packages for a shell, sorted, each once.
func words(list []string) string {
	out := slices.Clone(list)
	slices.Sort(out)
	out = slices.Compact(out)
	for i, w := range out {
		out[i] = shellQuote(w)
	}
	return strings.Join(out, " ")
}

// shellQuote writes a word so that a shell takes it as it is.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("@%+=:,./_-", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'"
}

// envQuote writes a value of ENV. In double quotes a Dockerfile knows \", \\ and \$.
func envQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(s) + `"`
}

// wordEscape writes a path in which a Dockerfile must not find variables or quotes.
func wordEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `$`, `\$`, `"`, `\"`, `'`, `\'`).Replace(s)
}

// globEscape is wordEscape for a source, which is a pattern besides.
func globEscape(s string) string {
	return wordEscape(strings.NewReplacer(`[`, `[[]`, `*`, `[*]`, `?`, `[?]`).Replace(s))
}
