package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Commands is what is said about programs that are started, by whatever door. A
// nil *Commands allows everything. It is immutable.
//
// Its rules are a guard rail: a program that may be started does what its user
// may, and one that runs other programs runs those that are denied here too.
type Commands struct {
	allow, deny []rule // allow is nil: everything
	allowed     string // allow, as a text
	shells      []rule // nil: they are like other programs
	users       []string
	cwd         []string // nil: where files may be read
	files       *Files
	envDeny     []string

	maxProcesses int
	maxRuntime   time.Duration
	maxOutput    int
}

// Limits of what a template can ask for.
const (
	minOutput = 4 << 10  // bytes kept of an output
	maxOutput = 64 << 20 // the same
)

// shells are the programs that commands.shell is about, beside that of the template.
var shells = []string{"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox"}

// loaders are variables that bring code into a program before it begins; glob
// patterns.
var loaders = []string{"LD_*", "GLIBC_TUNABLES", "DYLD_*"}

// injectors are variables that make interpreters and the like run code that their
// script does not name; glob patterns. Where only some programs are allowed,
// requests cannot set them, nor where those look for others.
var injectors = []string{
	"PATH", "BASH_ENV", "ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR",
	"PYTHON*", "NODE_OPTIONS", "NODE_PATH", "PERL5*", "PERLLIB", "RUBYOPT", "RUBYLIB", "LUA_*", "PHPRC", "PHP_INI_SCAN_DIR",
	"*JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "CLASSPATH", "GIT_*", "SSH_ASKPASS", "EDITOR", "VISUAL", "*PAGER", "LESSOPEN", "LESSCLOSE",
	"GCONV_PATH", "SHELL", "HOME", "XDG_CONFIG_*",
}

// Variables of our own prefix, which a request may not set; but those of function
// workers come from the caller.
const (
	ownPrefix    = "SANDBOX_"
	workerPrefix = "SANDBOX_WORKER"
)

// compileCommands returns nil when nothing is said, about files either.
func compileCommands(t *model.Template, files *Files) (*Commands, error) {
	m := &t.Policy.Commands
	c := &Commands{
		users: m.Users, cwd: m.Cwd, files: files, envDeny: m.EnvDeny,
		maxProcesses: m.MaxProcesses, maxRuntime: m.MaxRuntime, maxOutput: int(min(m.MaxOutput, maxOutput)),
	}
	said := files != nil || m.Allow != nil || m.Deny != nil || m.Shell != nil || m.Users != nil || m.Cwd != nil || m.EnvDeny != nil ||
		m.MaxProcesses != 0 || m.MaxRuntime != 0 || m.MaxOutput != 0
	if !said {
		return nil, nil
	}
	var err error
	if c.allow, err = compileRules("commands.allow", m.Allow); err != nil {
		return nil, err
	}
	if c.deny, err = compileRules("commands.deny", m.Deny); err != nil {
		return nil, err
	}
	if m.Allow != nil {
		var texts []string
		for _, r := range c.allow {
			texts = append(texts, r.String())
		}
		c.allowed = strings.Join(texts, ", ")
	}
	if m.Shell != nil && !*m.Shell {
		c.shells = shellRules(t.Shell)
	}
	if err := checkFolders("commands.cwd", m.Cwd); err != nil {
		return nil, err
	}
	for _, name := range m.EnvDeny {
		if _, err := path.Match(name, ""); err != nil || name == "" || strings.ContainsAny(name, "=/\x00") {
			return nil, invalid("commands.env_deny: %q is malformed", name)
		}
	}
	switch {
	case m.MaxProcesses < 0:
		return nil, invalid("commands.max_processes is negative: %d", m.MaxProcesses)
	case m.MaxProcesses > 0 && len(t.Interpreter.Prestart) >= m.MaxProcesses: // each is a process that stays
		return nil, invalid("commands.max_processes is %d, and the %d languages of interpreter.prestart leave none for commands", m.MaxProcesses, len(t.Interpreter.Prestart))
	case m.MaxRuntime < 0:
		return nil, invalid("commands.max_runtime is negative: %v", m.MaxRuntime)
	case m.MaxOutput != 0 && (m.MaxOutput < minOutput || m.MaxOutput > maxOutput):
		return nil, invalid("commands.max_output is %d; it must be from %d to %d", m.MaxOutput, minOutput, maxOutput)
	}
	return c, nil
}

// rule is a program and the beginning of its arguments.
type rule struct {
	program string // a name without a slash, or an absolute path
	args    []string
}

func (r rule) String() string { return strings.Join(append([]string{r.program}, r.args...), " ") }

func compileRules(key string, list []model.CommandRule) ([]rule, error) {
	if list == nil {
		return nil, nil
	}
	out := make([]rule, 0, len(list)) // an empty list allows nothing
	for _, m := range list {
		switch {
		case m.Program == "" || m.Program == "." || m.Program == ".." || strings.IndexByte(m.Program, 0) >= 0:
			return nil, invalid("%s: %q is not a program", key, m.Program)
		case strings.Contains(m.Program, "/") && (m.Program[0] != '/' || path.Clean(m.Program) != m.Program):
			return nil, invalid("%s: %q is neither a name nor an absolute path", key, m.Program)
		case strings.ContainsAny(m.Program, " \t\n") && len(m.Args) == 0:
			return nil, invalid("%s: %q is not a program; arguments are a list of their own", key, m.Program)
		}
		out = append(out, rule{m.Program, m.Args})
	}
	return out, nil
}

func shellRules(own string) []rule {
	names := shells
	if program := strings.Fields(own); len(program) > 0 && !slices.Contains(shells, program[0]) {
		names = append(slices.Clone(shells), program[0])
	}
	var out []rule
	for _, name := range names {
		out = append(out, rule{program: name})
	}
	return out
}

// A FileID tells a file from every other one.
type FileID struct{ Dev, Ino uint64 }

// Program is a program that is about to be started.
type Program struct {
	Name string   // as it was asked for, which is also what the program is told
	Path string   // of the file, after links
	File FileID   // of the file that will be executed
	Args []string // without the name
	// Interpreter is what reads the file, when it is a script; nil: nothing does,
	// or it is not known. Its Args begin with those of the first line.
	Interpreter *Program
}

// Finder finds the file that the program of a rule stands for: an absolute path,
// or a name that is looked up where the sandbox looks for programs.
type Finder func(program string) (FileID, bool)

// Rules reports whether Program can refuse anything.
func (c *Commands) Rules() bool {
	return c != nil && (c.allow != nil || c.deny != nil || c.shells != nil)
}

// Program refuses a program, with a [*Refusal].
func (c *Commands) Program(p *Program, find Finder) error {
	if !c.Rules() {
		return nil
	}
	// Deny and shell hold for who reads a script, too; allow does not: who allows
	// a script allows what it takes.
	for q := p; q != nil; q = q.Interpreter {
		for _, r := range c.deny {
			if r.denies(q, find) {
				return refuseCommand("commands.deny %q", r)
			}
		}
		for _, r := range c.shells {
			if r.denies(q, find) {
				return refuseCommand("commands.shell false")
			}
		}
	}
	if c.allow == nil {
		return nil
	}
	for _, r := range c.allow {
		if r.allows(p, find) {
			return nil
		}
	}
	return refuseCommand("commands.allow is %q", c.allowed)
}

// denies is generous: it takes another name of the same file, and another file of
// the same name.
func (r rule) denies(p *Program, find Finder) bool {
	if !r.begins(p.Args) {
		return false
	}
	if strings.HasPrefix(r.program, "/") {
		if p.Path == r.program {
			return true
		}
	} else if path.Base(p.Name) == r.program || path.Base(p.Path) == r.program {
		return true
	}
	file, ok := find(r.program)
	return ok && file == p.File
}

// allows is strict: the same file by the same name. Where many programs are one
// file, it is the name that says which one it will be.
func (r rule) allows(p *Program, find Finder) bool {
	if !r.begins(p.Args) || path.Base(p.Name) != path.Base(r.program) && p.Path != r.program {
		return false
	}
	file, ok := find(r.program)
	return ok && file == p.File
}

func (r rule) begins(args []string) bool {
	return len(args) >= len(r.args) && slices.Equal(args[:len(r.args)], r.args)
}

// User refuses to start anything as the user.
func (c *Commands) User(name string) error {
	if c == nil || c.users == nil || slices.Contains(c.users, name) {
		return nil
	}
	return refuseCommand("commands.users is %s", quoted(c.users))
}

// Dir refuses a working folder, given as the kernel tells its path.
func (c *Commands) Dir(p string) error {
	switch {
	case c == nil:
		return nil
	case c.cwd == nil:
		return c.files.Read(p)
	case !inside(p, c.cwd):
		return refuseCommand("commands.cwd is %s", quoted(c.cwd))
	}
	return nil
}

// Follow reports whether the path of a working folder may lead over links.
func (c *Commands) Follow() bool { return c == nil || c.files.FollowLinks() }

// Link refuses a working folder because its path leads over a link.
func (c *Commands) Link() error { return c.files.Link() }

// Source is where a variable of a command comes from.
type Source int

// The sources of variables.
const (
	OfRequest Source = iota // a client
	OfCommand               // the declaration of a named command, or its function
	OfSandbox               // template and sandbox
)

// Strips reports whether a variable is taken out of the environment of a command.
func (c *Commands) Strips(name string, from Source) bool {
	if c == nil {
		return false
	}
	switch {
	case from != OfSandbox && strings.HasPrefix(name, workerPrefix):
		return false // without them a worker is the program of its caller from its beginning
	case from != OfSandbox && strings.HasPrefix(name, ownPrefix),
		from != OfSandbox && isOne(name, loaders),
		from == OfRequest && c.allow != nil && isOne(name, injectors):
		return true
	}
	return isOne(name, c.envDeny)
}

func isOne(name string, patterns []string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}

// MaxProcesses is how many may run at a time; 0: no limit.
func (c *Commands) MaxProcesses() int {
	if c == nil {
		return 0
	}
	return c.maxProcesses
}

// TooMany is the refusal at MaxProcesses.
func (c *Commands) TooMany() *Refusal {
	return &Refusal{Code: "E8021", Rule: fmt.Sprintf("commands.max_processes %d", c.maxProcesses), Limit: true}
}

// MaxRuntime is how long one may run; 0: no limit.
func (c *Commands) MaxRuntime() time.Duration {
	if c == nil {
		return 0
	}
	return c.maxRuntime
}

// TooLong is the rule at MaxRuntime.
func (c *Commands) TooLong() *Refusal {
	return &Refusal{Code: "E8021", Rule: fmt.Sprintf("commands.max_runtime %v", c.maxRuntime), Limit: true}
}

// MaxOutput is how many bytes are kept of each output; 0: as many as without a
// policy.
func (c *Commands) MaxOutput() int {
	if c == nil {
		return 0
	}
	return c.maxOutput
}

func refuseCommand(format string, args ...any) error {
	return &Refusal{Code: "E8021", Rule: fmt.Sprintf(format, args...)}
}
