package policy

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func files(t testing.TB, m model.FilePolicy) *Files {
	t.Helper()
	p, err := Compile(&model.Template{Policy: model.Policy{Files: m}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.Files()
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/a/b", "/a/b", true},
		{"/a/b", "/a/b/c/d", true}, // with all that lies below
		{"/a/b", "/a/bc", false},
		{"/a/b", "/a", false},
		{"/a/*", "/a/x", true},
		{"/a/*", "/a", false},
		{"/a/*/c", "/a/b/c", true},
		{"/a/*/c", "/a/b/b/c", false},
		{"/a/*.pem", "/a/key.pem", true},
		{"/a/[k-l]ey", "/a/key", true},
		{"/a/?", "/a/xy", false},
		{"**/.ssh/**", "/home/x/.ssh/id", true},
		{"**/.ssh/**", "/.ssh/id", true},
		{"**/.ssh/**", "/home/x/.ssh", true},
		{"**/.ssh/**", "/home/x/.sshd", false},
		{"/a/**/c", "/a/c", true},
		{"/a/**/c", "/a/b/b/c", true},
		{"/a/**/c", "/b/c", false},
		{"**/*.key", "/x/y/z.key", true},
		{"**/*.key", "/x/y.key/z", true},
		{"**/a/**/b", "/a/x/a/y/b", true},
		{"/**", "/", true},
		{"/", "/x", true},
		{"/a/**/**/b", "/a/b", true},
	} {
		f := files(t, model.FilePolicy{Deny: []string{c.pattern}})
		if got := f.Read(c.path) != nil; got != c.want {
			t.Errorf("%s on %s: %v", c.pattern, c.path, got)
		}
	}
}

// TestRemovedFiles: the kernel adds to the path of what has no name any more.
func TestRemovedFiles(t *testing.T) {
	f := files(t, model.FilePolicy{Deny: []string{"**/key"}})
	for _, p := range []string{"/a/key (deleted)", "(unreachable)/a/x", "pipe:[1]", ""} {
		if f.Read(p) == nil {
			t.Errorf("%q may be read", p)
		}
	}
	if err := f.Read("/a/other (deleted)"); err != nil {
		t.Error(err)
	}
}

func TestMovesKeepWhatIsDenied(t *testing.T) {
	for _, c := range []struct {
		deny, from, to string
		want           bool // it may move
	}{
		{"/a/secret", "/a", "/b", false},
		{"/a/secret", "/a/x", "/a/y", true},
		{"/a/secret", "/a/secret", "/b", false},
		{"/a/secret", "/b", "/a/secret", false},
		{"**/.ssh", "/a", "/b", true},
		{"**/.ssh/id", "/a/.ssh", "/a/ssh", false},
		{"**/.ssh/id", "/a/ssh", "/a/.ssh", true},
		{"/a/*/key", "/a/x", "/a/y", true},
		{"/a/*/key", "/a/x", "/b", false},
		{"/a/**/key", "/a/x", "/a/y/z", true},
		{"/a/**/key", "/a/x", "/b", false},
	} {
		f := files(t, model.FilePolicy{Deny: []string{c.deny}})
		if got := f.Move(c.from, c.to) == nil; got != c.want {
			t.Errorf("%s: from %s to %s: %v", c.deny, c.from, c.to, got)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		policy model.Policy
		want   string
	}{
		{model.Policy{Files: model.FilePolicy{Read: []string{"work"}}}, `files.read: "work" is not absolute`},
		{model.Policy{Files: model.FilePolicy{Read: []string{"/srv/"}}}, `files.read: "/srv/" is not clean; write "/srv"`},
		{model.Policy{Files: model.FilePolicy{Read: []string{"/work"}, Write: []string{"/workshop"}}}, `files.write: "/workshop" lies in no folder of files.read`},
		{model.Policy{Files: model.FilePolicy{Deny: []string{"*.pem"}}}, `files.deny: "*.pem" does not begin with a slash; for any folder, write "**/*.pem"`},
		{model.Policy{Files: model.FilePolicy{Deny: []string{"/a/[b"}}}, `files.deny: "/a/[b": "[b" is malformed`},
		{model.Policy{Files: model.FilePolicy{Deny: []string{"/a/b**"}}}, `files.deny: "/a/b**": "b**" is malformed`},
		{model.Policy{Files: model.FilePolicy{Deny: []string{"/a/../b"}}}, `files.deny: "/a/../b" is not clean; write "/b"`},
		{model.Policy{Files: model.FilePolicy{Deny: []string{strings.Repeat("/a", 64)}}}, "more than 63 elements"},
		{model.Policy{Files: model.FilePolicy{MaxBytes: -1}}, "files.max_bytes is negative"},
		{model.Policy{Files: model.FilePolicy{MaxEntries: -1}}, "files.max_entries is negative"},
		{model.Policy{Commands: model.CommandPolicy{Allow: []model.CommandRule{{}}}}, `commands.allow: "" is not a program`},
		{model.Policy{Commands: model.CommandPolicy{Deny: []model.CommandRule{{Program: "git push"}}}}, `commands.deny: "git push" is not a program; arguments are a list of their own`},
		{model.Policy{Commands: model.CommandPolicy{Deny: []model.CommandRule{{Program: "bin/x"}}}}, `commands.deny: "bin/x" is neither a name nor an absolute path`},
		{model.Policy{Commands: model.CommandPolicy{Cwd: []string{"x"}}}, `commands.cwd: "x" is not absolute`},
		{model.Policy{Commands: model.CommandPolicy{EnvDeny: []string{"A=B"}}}, `commands.env_deny: "A=B" is malformed`},
		{model.Policy{Commands: model.CommandPolicy{MaxProcesses: -1}}, "commands.max_processes is negative"},
		{model.Policy{Commands: model.CommandPolicy{MaxRuntime: -time.Second}}, "commands.max_runtime is negative"},
		{model.Policy{Commands: model.CommandPolicy{MaxOutput: 1}}, "commands.max_output is 1; it must be from 4096 to 67108864"},
		{model.Policy{Commands: model.CommandPolicy{MaxOutput: 1 << 40}}, "commands.max_output is 1099511627776"},
	} {
		if _, err := Compile(&model.Template{Policy: c.policy}, nil); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "E8007") {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// TestOneFileOfManyPrograms is about systems where all programs are one file, and
// the name says which one it is.
func TestOneFileOfManyPrograms(t *testing.T) {
	box := FileID{1, 2}
	find := func(name string) (FileID, bool) { return box, name == "ls" || name == "sh" || name == "busybox" }
	no := false
	as := func(name string, args ...string) *Program {
		return &Program{Name: name, Path: "/bin/busybox", File: box, Args: args}
	}
	compile := func(m model.CommandPolicy) *Commands {
		p, err := Compile(&model.Template{Policy: model.Policy{Commands: m}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.Commands()
	}
	allow := compile(model.CommandPolicy{Allow: []model.CommandRule{{Program: "ls"}}})
	for name, want := range map[string]bool{"ls": true, "/bin/ls": true, "/tmp/ls": true, "sh": false, "busybox": false, "/tmp/l": false} {
		if got := allow.Program(as(name), find) == nil; got != want {
			t.Errorf("allow ls: %s: %v", name, got)
		}
	}
	if compile(model.CommandPolicy{Shell: &no}).Program(as("ls"), find) == nil {
		t.Error("a file that is a shell by another name may be started")
	}
}

// plainMatch is what a pattern means, written down without a thought for speed.
func plainMatch(pattern, name []string) bool {
	if len(pattern) == 0 {
		return true // whatever lies below
	}
	if pattern[0] == "**" {
		return plainMatch(pattern[1:], name) || len(name) > 0 && plainMatch(pattern, name[1:])
	}
	if len(name) == 0 {
		return false
	}
	ok, _ := path.Match(pattern[0], name[0])
	return ok && plainMatch(pattern[1:], name[1:])
}

func elems(p string) []string {
	return strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
}

// FuzzPattern compares with plainMatch, and holds kept to its word: what is
// denied below one path is denied below the other.
func FuzzPattern(f *testing.F) {
	f.Add("**/.ssh/**", "/a/.ssh/b", "/x", "/y")
	f.Add("/a/*/c", "/a/b/c", "/a/b", "/a/d")
	f.Add("/a/**/b/**/c", "/a/b/b/c", "/a", "/b/a")
	f.Add("/[a-c]/?*", "/b/xx", "/", "/b")
	f.Fuzz(func(t *testing.T, text, below, from, to string) {
		if len(text) > 60 || len(below)+len(from)+len(to) > 80 {
			return
		}
		p, err := compilePattern(text)
		if err != nil {
			return
		}
		below, from, to = path.Clean("/"+below), path.Clean("/"+from), path.Clean("/"+to)
		if got, want := p.match(below), plainMatch(p.elems, elems(below)); got != want {
			t.Fatalf("%q on %q: %v, want %v", text, below, got, want)
		}
		if p.kept(from, to) && p.match(path.Join(from, below)) && !p.match(from) && !p.match(path.Join(to, below)) {
			t.Fatalf("%q: %q is denied below %q and not below %q", text, below, from, to)
		}
	})
}

// FuzzRules: nothing passes an allow list but the file of the rule, with its
// arguments before all others; nothing that a rule denies passes by any name.
func FuzzRules(f *testing.F) {
	f.Add("git", "status", "/usr/bin/git", "status\x00-s", uint64(1))
	f.Add("/usr/bin/git", "", "git", "", uint64(2))
	f.Fuzz(func(t *testing.T, program, arg, name, args string, file uint64) {
		m := model.CommandRule{Program: program}
		if arg != "" {
			m.Args = []string{arg}
		}
		if _, err := compileRules("commands.allow", []model.CommandRule{m}); err != nil {
			return
		}
		compile := func(m model.CommandPolicy) *Commands {
			p, err := Compile(&model.Template{Policy: model.Policy{Commands: m}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return p.Commands()
		}
		p := &Program{Name: name, Path: path.Clean("/" + name), File: FileID{1, file}}
		if args != "" {
			p.Args = strings.Split(args, "\x00")
		}
		find := func(string) (FileID, bool) { return FileID{1, 7}, true }
		begins := arg == "" || len(p.Args) > 0 && p.Args[0] == arg
		if compile(model.CommandPolicy{Allow: []model.CommandRule{m}}).Program(p, find) == nil && (file != 7 || !begins) {
			t.Fatalf("%+v is allowed by %+v", p, m)
		}
		if compile(model.CommandPolicy{Deny: []model.CommandRule{m}}).Program(p, find) == nil && file == 7 && begins {
			t.Fatalf("%+v is not denied by %+v", p, m)
		}
	})
}
