package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func (a *app) templateCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "template",
		Short: "check, find and build templates",
		Long: `Templates say what sandboxes are made from and what they offer. REF names one, as
docs/templates.md has it: a folder (./dir), a built-in template or one of the
catalog (name, name:^1.2), a repository (owner/repo//dir@ref), an archive or an
artifact of a registry (oci://host/repo:tag).`,
	})
	cmd.AddCommand(a.buildCommand(), a.builtCommand(), a.removeCommand(), a.lintCommand(), a.showCommand(), a.cacheCommand())
	return cmd
}

// problemJSON is one mistake in a template.
type problemJSON struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1
	Col     int    `json:"col,omitempty"`  // from 1, in characters
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (a *app) lintCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lint [PATH…]",
		Short: "say what is wrong in template files",
		Long: `Lint reads templates, of the folder here or of the folders and files that are
named, and prints every mistake with its line and column. The status is 2 when
there is one. What they are based on is not looked for; "sandbox template show"
does that. What is no mistake and cannot be built everywhere is said on standard
error.`,
		Args: arguments(0, -1, ""),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			found := []problemJSON{}
			for _, path := range args {
				t, err := lint(path)
				if err == nil && needsImage(t) {
					a.notice([]string{path + ": system packages (apt) need an image as base: provider local cannot add them to the files of this machine; write base: {image: NAME}"})
				}
				bad, ok := errors.AsType[*templates.Invalid](err)
				if err != nil && !ok {
					return err
				}
				if !ok {
					continue
				}
				for _, p := range bad.Problems {
					found = append(found, problemJSON(p))
				}
			}
			if err := a.printProblems(found, asJSON); err != nil {
				return err
			}
			if len(found) > 0 {
				return exitStatus(statusOf(errdefs.New("E2004", "", "")))
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// lint reads one template of this machine.
func lint(path string) (*model.Template, error) {
	const op = "lint template"
	info, err := os.Stat(path)
	if err != nil {
		return nil, coded(op, path, err)
	}
	if info.IsDir() {
		return templates.Load(path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, coded(op, path, err)
	}
	return templates.Parse(text, path)
}

// needsImage reports whether a template cannot be built over the files of this
// machine. What it is based on is not known here.
func needsImage(t *model.Template) bool {
	return t.Dockerfile == "" && t.Base.From == "" && (t.Base.Image == "" || t.Base.Host) &&
		slices.ContainsFunc(t.Build, func(s model.Step) bool { return len(s.Apt) > 0 })
}

func (a *app) printProblems(found []problemJSON, asJSON bool) error {
	if asJSON {
		return a.printJSON(found)
	}
	for _, p := range found {
		if _, err := fmt.Fprintln(a.stdout, oneLine(templates.Problem(p).String())); err != nil {
			return err
		}
	}
	return nil
}

// resolveFlags are the options of how templates are found.
type resolveFlags struct{ o templates.ResolveOptions }

func (f *resolveFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.o.Offline, "offline", false, "take what is not here from the cache only")
	cmd.Flags().BoolVar(&f.o.Refresh, "refresh", false, "ask for the catalog, however fresh the copy is")
	cmd.Flags().StringVar(&f.o.Index, "index", "", "`address` or file of the catalog (default: SANDBOX_TEMPLATE_INDEX, else none)")
}

// resolve finds a template, and says what a person should know of that.
func (a *app) resolve(cmd *cobra.Command, ref string, f *resolveFlags) (*templates.Resolved, error) {
	done := a.progress("looking for " + ref)
	r, err := templates.Resolve(cmd.Context(), ref, &f.o)
	done()
	if err == nil {
		a.notice(r.Notices)
	}
	return r, err
}

// notice prints what is no failure.
func (a *app) notice(texts []string) {
	for _, t := range texts {
		fmt.Fprintln(a.stderr, "sandbox:", oneLine(t))
	}
}

// showJSON is a template that was found.
type showJSON struct {
	Template *model.Template `json:"template"`
	Layers   []layerJSON     `json:"layers"`
}

type layerJSON struct {
	Ref    string `json:"ref"`
	Rev    string `json:"rev,omitempty"`
	Digest string `json:"digest,omitempty"`
	Dir    string `json:"dir,omitempty"`
}

func (a *app) showCommand() *cobra.Command {
	var f resolveFlags
	var dockerfile, asJSON bool
	cmd := &cobra.Command{
		Use:   "show REF",
		Short: "find a template and say what is in it",
		Long: `Show finds a template and what it is based on, and prints what they say together;
with --dockerfile, what an engine would build.`,
		Args: arguments(1, 1, "the name of a template"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dockerfile && asJSON {
				return usage(cmd, "--dockerfile and --json exclude each other")
			}
			r, err := a.resolve(cmd, args[0], &f)
			if err != nil {
				return err
			}
			if dockerfile {
				text, err := templates.Dockerfile(r.Template)
				if err != nil {
					return err
				}
				_, err = a.stdout.WriteString(text)
				return err
			}
			out := showJSON{Template: r.Template, Layers: []layerJSON{}}
			for _, l := range r.Layers {
				out.Layers = append(out.Layers, layerJSON{l.Ref, l.Rev, l.Digest, l.Dir})
			}
			if asJSON {
				return a.printJSON(out)
			}
			return a.printFields(templateFields(&out))
		},
		ValidArgsFunction: completeTemplate,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&dockerfile, "dockerfile", false, "print its Dockerfile")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func templateFields(s *showJSON) [][2]string {
	t := s.Template
	mib := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n) + "MiB"
	}
	var ports, from []string
	for _, p := range t.Ports {
		ports = append(ports, strconv.Itoa(p))
	}
	for _, l := range s.Layers {
		from = append(from, l.Ref)
	}
	lifetime := ""
	if t.Resources.Lifetime > 0 {
		lifetime = t.Resources.Lifetime.String()
	}
	base := t.Base.Image
	if t.Dockerfile == "" && (base == "" || t.Base.Host) {
		base = "this machine's files on provider local, else " + cmp.Or(base, templates.DefaultImage)
	}
	fields := [][2]string{
		{"name", t.Name}, {"version", t.Version}, {"description", t.Description}, {"found", strings.Join(from, ", based on ")},
		{"image", base}, {"requires", strings.Join(t.Requires, " ")}, {"network", t.Network}, {"ports", strings.Join(ports, " ")},
		{"user", t.User}, {"workdir", t.Workdir}, {"cpu", positive(t.Resources.CPU)}, {"memory", mib(t.Resources.MemoryMB)},
		{"disk", mib(t.Resources.DiskMB)}, {"lifetime", lifetime}, {"variables", strings.Join(slices.Sorted(maps.Keys(t.Env)), " ")},
		{"start", t.Start},
	}
	if t.Server != nil {
		fields = append(fields, [2]string{"enabled", strings.Join(t.Server.Enable, " ")}, [2]string{"disabled", strings.Join(t.Server.Disable, " ")})
	}
	for i, step := range t.Build {
		fields = append(fields, [2]string{"step " + strconv.Itoa(i+1), stepText(step)})
	}
	if t.Dockerfile != "" {
		fields = append(fields, [2]string{"build", "by its own Dockerfile"})
	}
	for _, name := range slices.Sorted(maps.Keys(t.Commands)) {
		if c := t.Commands[name]; !c.Hidden {
			fields = append(fields, [2]string{"command " + name, c.Description})
		}
	}
	return fields
}

func stepText(s model.Step) string {
	switch {
	case len(s.Apt) > 0:
		return "apt " + strings.Join(s.Apt, " ")
	case len(s.Pip) > 0:
		return "pip " + strings.Join(s.Pip, " ")
	case len(s.Npm) > 0:
		return "npm " + strings.Join(s.Npm, " ")
	case s.Copy != nil:
		return "copy " + s.Copy.Src + " to " + s.Copy.Dest
	}
	return "run " + s.Run
}

// completeTemplate offers built-in templates, and folders.
func completeTemplate(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if strings.ContainsAny(word, "./") {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return templates.Builtin(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) cacheCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "cache",
		Short: "list and remove copies of templates from elsewhere",
		Long:  `The cache keeps what came over the network; everything in it can be had again.`,
	})
	var asJSON bool
	list := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the copies",
		Args:    arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			_, entries, err := openCache()
			if err != nil {
				return err
			}
			if asJSON {
				if entries == nil {
					entries = []templates.Entry{}
				}
				return a.printJSON(entries)
			}
			var rows [][]string
			for _, e := range entries {
				rev := e.Rev
				if len(rev) > 12 {
					rev = rev[:12]
				}
				rows = append(rows, []string{e.Ref, rev, byteCount(e.Bytes), ago(e.Fetched), ago(e.Checked)})
			}
			return a.printTable([]string{"REF", "REVISION", "SIZE", "FETCHED", "CHECKED"}, rows)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	jsonFlag(list, &asJSON)
	var all bool
	remove := &cobra.Command{
		Use:   "clear [REF…]",
		Short: "remove copies",
		Long:  `Clear removes the copies of the named references, as "ls" writes them, or with --all every one and the catalog.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(cmd, "name references, or --all")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, refs []string) error {
			c, entries, err := openCache()
			if err != nil {
				return err
			}
			for _, ref := range refs {
				if !slices.ContainsFunc(entries, func(e templates.Entry) bool { return e.Ref == ref }) {
					return errdefs.New("E2001", "clear cache", "there is no copy of "+strconv.Quote(ref))
				}
			}
			return c.Clear(refs...)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (refs []string, d cobra.ShellCompDirective) {
			_, entries, err := openCache()
			if err != nil {
				entries = nil
			}
			for _, e := range entries {
				if !slices.Contains(args, e.Ref) {
					refs = append(refs, e.Ref)
				}
			}
			return refs, cobra.ShellCompDirectiveNoFileComp
		},
	}
	remove.Flags().BoolVarP(&all, "all", "a", false, "every copy, and the catalog")
	cmd.AddCommand(list, remove)
	return cmd
}

func openCache() (*templates.Cache, []templates.Entry, error) {
	c, err := templates.OpenCache("")
	if err != nil {
		return nil, nil, err
	}
	entries, err := c.List()
	return c, entries, err
}

// byteCount is a number of bytes that need not be a multiple of anything.
func byteCount(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}
