//go:build linux

package process

import (
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// rules is what the policy says about commands; nil: nothing.
func (l *launch) rules() *policy.Commands { return l.svc.rules }

// vetted is a program that may be started.
type vetted struct {
	name string   // what to execute
	file *os.File // the program, where it is executed as what was looked at; nil: by its name
}

func (v *vetted) close() {
	if v.file != nil {
		v.file.Close()
	}
}

// vet asks the policy about the program at name.
//
// A program is executed as the very file that was asked about. What reads a script
// opens it once more, by its name: until then somebody can put another one there.
func (l *launch) vet(name string) (*vetted, error) {
	v := &vetted{name: name}
	if !l.rules().Rules() {
		return v, nil
	}
	p, f, err := l.program(l.config.GetCmd(), name, l.config.GetArgs(), maxInterpreters)
	if err != nil {
		return nil, l.startError(name, err)
	}
	if err := l.rules().Program(p, l.ruleFile); err != nil {
		f.Close()
		return nil, policy.Connect(err)
	}
	if p.Interpreter != nil {
		f.Close()
		return v, nil
	}
	v.file = f
	return v, nil
}

// execName is what to execute, by a process that gets files. The new process puts
// those in their places before, and the descriptor must not be in one of them.
func (v *vetted) execName(s *Service, l *launch, files []*os.File) (string, error) {
	if v.file == nil {
		return v.name, nil
	}
	high := 0
	for _, f := range files {
		high = max(high, int(f.Fd()))
	}
	fd, err := unix.FcntlInt(v.file.Fd(), unix.F_DUPFD_CLOEXEC, high+2*len(files)+8)
	if err != nil {
		return "", os.NewSyscallError("fcntl", err)
	}
	v.file.Close()
	v.file = os.NewFile(uintptr(fd), v.name)
	return s.descriptor(v.file, l.user), nil
}

// maxInterpreters is how many scripts in a row are looked into; the kernel goes as
// far, exec_binprm in fs/exec.c.
const maxInterpreters = 5

// headSize is how much of a file the kernel looks at, BINPRM_BUF_SIZE.
const headSize = 256

// program describes the file at name, which is relative to the working folder. The
// file is open for its identity only.
func (l *launch) program(asked, name string, args []string, depth int) (*policy.Program, *os.File, error) {
	var st unix.Stat_t
	fd := -1
	err := l.user.Do(func() (err error) {
		fd, err = unix.Openat2(int(l.dir.Fd()), name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EACCES
		}
		return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	at, err := os.Readlink(fdPath(f))
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	p := &policy.Program{Name: asked, Path: at, File: policy.FileID{Dev: uint64(st.Dev), Ino: st.Ino}, Args: args}
	if line, ok := strings.CutPrefix(head(f), "#!"); ok {
		p.Interpreter = l.interpreter(line, name, args, depth-1)
	}
	return p, f, nil
}

// head is the beginning of an open file, "" when it cannot be read: then nothing
// else could read it as a script.
func head(f *os.File) string {
	r, err := os.Open(fdPath(f))
	if err != nil {
		return ""
	}
	defer r.Close()
	buf := make([]byte, headSize)
	n, _ := io.ReadFull(r, buf)
	return string(buf[:n])
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + uitoa(uint32(f.Fd())) }

// interpreter is what reads the script at name, from its first line. One that
// cannot be looked at has a name only: the kernel will not find it either.
func (l *launch) interpreter(line, name string, args []string, depth int) *policy.Program {
	// A NUL ends the line for the kernel, too, load_script in fs/binfmt_script.c.
	line, _, _ = strings.Cut(line, "\n")
	line, _, _ = strings.Cut(line, "\x00")
	reader, arg, _ := strings.Cut(strings.Trim(strings.ReplaceAll(line, "\t", " "), " "), " ")
	words := []string{name}
	if arg = strings.TrimSpace(arg); arg != "" {
		words = []string{arg, name}
	}
	p := &policy.Program{Name: reader, Path: reader, Args: append(words, args...)}
	if depth <= 0 {
		return p
	}
	if q, f, err := l.program(reader, reader, p.Args, depth); err == nil {
		f.Close()
		p = q
	}
	if path.Base(reader) != "env" || p.Interpreter != nil {
		return p
	}
	rest := envWords(arg)
	if len(rest) == 0 {
		return p
	}
	other := &launch{svc: l.svc, user: l.user, dir: l.dir, path: l.path, config: &pb.ProcessConfig{Cmd: rest[0]}}
	target, err := other.lookPath()
	if err != nil {
		target = rest[0]
	}
	p.Interpreter = &policy.Program{Name: rest[0], Path: target, Args: append(rest[1:], append([]string{name}, args...)...)}
	if q, f, err := l.program(rest[0], target, p.Interpreter.Args, depth-1); err == nil {
		f.Close()
		p.Interpreter = q
	}
	return p
}

// envWords is what env starts of its argument in the first line of a script: the
// first word that is no option and sets no variable, and those after it.
func envWords(arg string) []string {
	words := strings.Fields(arg)
	for i := 0; i < len(words); i++ {
		word := words[i]
		long := strings.HasPrefix(word, "--")
		name, value, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case !strings.HasPrefix(word, "-"):
			if strings.Contains(word, "=") {
				continue
			}
			return unquoted(words[i:])
		case long && strings.HasPrefix("split-string", name) && name != "":
			if value != "" {
				return envWords(strings.Join(append([]string{value}, words[i+1:]...), " "))
			}
		case long:
			if value == "" && (name == "unset" || name == "chdir" || name == "argv0") {
				i++
			}
		default:
			// Letters of options, the last of which may have a value: the rest of
			// the word, or the next one.
			at := strings.IndexAny(word, "SuCa")
			switch {
			case at < 0:
			case word[at] == 'S' && at+1 < len(word):
				return envWords(strings.Join(append([]string{word[at+1:]}, words[i+1:]...), " "))
			case word[at] != 'S' && at+1 == len(word):
				i++
			}
		}
	}
	return nil
}

// unquoted takes away what quotes and escapes words for env -S.
func unquoted(words []string) []string {
	plain := strings.NewReplacer(`"`, "", `'`, "", `\`, "")
	for i, w := range words {
		words[i] = plain.Replace(w)
	}
	return words
}

// ruleFile finds the file that a rule is about: a name is looked up where the
// sandbox looks for programs, whatever PATH a request brings.
func (l *launch) ruleFile(program string) (policy.FileID, bool) {
	if strings.HasPrefix(program, "/") {
		return fileID(program)
	}
	env := map[string]string{"PATH": DefaultPath}
	l.svc.opts.Env.AddTo(env)
	for dir := range strings.SplitSeq(env["PATH"], ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		if id, ok := fileID(path.Join(dir, program)); ok {
			return id, true
		}
	}
	return policy.FileID{}, false
}

func fileID(name string) (policy.FileID, bool) {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return policy.FileID{}, false
	}
	return policy.FileID{Dev: uint64(st.Dev), Ino: st.Ino}, true
}

// checkDir asks the policy about the open working folder.
func (l *launch) checkDir() error {
	if l.rules() == nil {
		return nil
	}
	p, err := os.Readlink(fdPath(l.dir))
	if err != nil {
		return err
	}
	return policy.Connect(l.rules().Dir(p))
}

// badDir explains err of the way to the working folder. What it must not be is
// not told apart from what is not there.
func (l *launch) badDir(cwd string, err error) error {
	if l.rules() == nil {
		return nil
	}
	if err == unix.ELOOP && !l.rules().Follow() {
		return policy.Connect(l.rules().Link())
	}
	return policy.Connect(l.rules().Dir(cwd))
}

// strip takes variables out that a command must not have.
func (l *launch) strip(env map[string]string, from policy.Source) { l.svc.strip(env, from) }

func (s *Service) strip(env map[string]string, from policy.Source) {
	maps.DeleteFunc(env, func(name, _ string) bool { return s.rules.Strips(name, from) })
}

// Kept is what the policy leaves of variables that a request brings for something
// that runs already. Env is not changed.
func (s *Service) Kept(env map[string]string) map[string]string {
	if s.rules == nil {
		return env
	}
	env = maps.Clone(env)
	s.strip(env, policy.OfRequest)
	return env
}

// slots counts what runs, where the policy says how much may.
type slots struct {
	mu   sync.Mutex
	used int // guarded by mu
}

// take takes a slot for p, which finish gives back.
func (s *Service) take(p *proc) error {
	limit := s.rules.MaxProcesses()
	if limit == 0 {
		return nil
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.slots.used >= limit {
		return policy.Connect(s.rules.TooMany())
	}
	s.slots.used++
	p.slot = true
	return nil
}

// free gives back the slot of p, if it has one.
func (s *Service) free(p *proc) {
	if !p.slot {
		return
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.slots.used--
	p.slot = false
}

// limitRuntime ends p when it has run as long as the policy lets it.
func (s *Service) limitRuntime(p *proc) {
	if d := s.rules.MaxRuntime(); d > 0 {
		s.killAfter(p, d, func() { p.overrun.Store(s.rules.TooLong()) })
	}
}

// may asks whether what is done to a process that was started is on: by the name
// for terminals or by that for all others.
func (s *Service) may(what string, term bool) error {
	group := "process."
	if term {
		group = "terminal."
	}
	return policy.Connect(s.opts.Policy.Endpoint(group + what))
}

// findFor is find for a call that is the endpoint what of processes or terminals.
// Where it is of neither, nobody learns which processes there are.
func (s *Service) findFor(what string, sel *pb.ProcessSelector, past bool) (*proc, error) {
	if err := s.may(what, false); err != nil && s.may(what, true) != nil {
		return nil, err
	}
	p, err := s.find(sel, past)
	if err != nil {
		return nil, err
	}
	if err := s.may(what, p.term != nil); err != nil {
		return nil, err
	}
	return p, nil
}

// mayStart asks whether the endpoints are on that a start is.
func (s *Service) mayStart(term, channel bool) error {
	names := []string{"process.exec", "functions.call"}
	if term {
		names[0] = "terminal.open"
	}
	if !channel {
		names = names[:1]
	}
	for _, name := range names {
		if err := s.opts.Policy.Endpoint(name); err != nil {
			return policy.Connect(err)
		}
	}
	return nil
}
