//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/layertar"
	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// treeWork is something to be done to a tree of files in a directory of trees,
// whose files belong to the ids inside.
//
// Root does it itself, and so does a user whose sandboxes have one user. With
// sub-ids the files belong to ids that only the root of a user namespace which
// maps them can give away and read: there a process in one does it, with the
// same mapping as every sandbox of the user.
type treeWork struct {
	Op      string           `json:"op"`
	Name    string           `json:"name"`             // of the tree
	From    []string         `json:"from,omitempty"`   // trees to merge, the uppermost first
	Options layertar.Options `json:"options,omitzero"` // of unpack
}

const (
	workUnpack = "unpack" // an archive into the tree, which is empty
	workMerge  = "merge"  // trees into the tree, which is empty
	workRemove = "remove"
)

// ownerOptions say whose the files of an archive are.
func ownerOptions(kind mapKind) (o layertar.Options) {
	switch kind {
	case mapBlock:
		o.OwnerBase = volumeIDs
	case mapSubid:
		o.KeepOwners = true
	}
	return o
}

// run does the work in dir, with an archive for unpack.
func (w treeWork) run(ctx context.Context, dir *folder, archive io.Reader) (layertar.Stats, error) {
	if mappingKind() != mapSubid {
		return w.do(ctx, dir, archive)
	}
	if w.Op == workRemove {
		// Mostly it is empty or not even there.
		if layertar.Remove(dir.f, w.Name) == nil {
			return layertar.Stats{}, nil
		}
	}
	return w.delegate(ctx, dir, archive)
}

// do does the work in this process.
func (w treeWork) do(ctx context.Context, dir *folder, archive io.Reader) (stats layertar.Stats, err error) {
	if w.Op == workRemove {
		return stats, layertar.Remove(dir.f, w.Name)
	}
	out, err := dir.sub(w.Name)
	if err != nil {
		return stats, err
	}
	defer out.close()
	switch w.Op {
	case workUnpack:
		return layertar.Unpack(ctx, out.f, archive, w.Options)
	case workMerge:
		var from []*os.File
		for _, n := range w.From {
			d, err := dir.sub(n)
			if err != nil {
				return stats, err
			}
			defer d.close()
			from = append(from, d.f)
		}
		return stats, layertar.Merge(ctx, out.f, from)
	}
	return stats, fmt.Errorf("unknown work %q", w.Op)
}

// workResult is what such a process says last.
type workResult struct {
	Stats layertar.Stats       `json:"stats"`
	Error string               `json:"error,omitempty"`
	Errno syscall.Errno        `json:"errno,omitempty"`
	Limit *layertar.LimitError `json:"limit,omitempty"`
}

func (r *workResult) err() error {
	switch {
	case r.Limit != nil:
		return r.Limit
	case r.Error != "":
		return &workError{r.Error, r.Errno}
	}
	return nil
}

// workError is an error of another process.
type workError struct {
	text  string
	errno syscall.Errno // zero: none
}

// Error is the text of the other process.
func (e *workError) Error() string { return e.text }

// Unwrap is the number of the error, if it had one.
func (e *workError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// Descriptors of such a process.
const (
	fdWork    = "work"    // the directory
	fdArchive = "archive" // its end: the archive is complete, or the client is gone
)

// delegate does the work in a process of its own, which has ended when it returns.
func (w treeWork) delegate(ctx context.Context, dir *folder, archive io.Reader) (stats layertar.Stats, err error) {
	ours, theirs, err := controlPair()
	if err != nil {
		return stats, err
	}
	defer ours.Close()
	defer theirs.Close()
	in, out, err := os.Pipe()
	if err != nil {
		return stats, err
	}
	defer in.Close()
	defer out.Close()
	proc, err := startWork(theirs, dir.f, in)
	if err != nil {
		return stats, err
	}
	defer func() {
		_ = proc.Kill() // an error means that it has ended
		_, _ = proc.Wait()
	}()
	theirs.Close()
	in.Close()
	stop := context.AfterFunc(ctx, func() { ours.Close(); out.Close() })
	defer stop()
	r, err := w.instruct(ctx, proc.Pid, ours, out, archive)
	if ctx.Err() != nil {
		return stats, context.Cause(ctx)
	}
	if err != nil {
		return stats, fmt.Errorf("process that has the rights of files' owners: %w", err)
	}
	return r.Stats, r.err()
}

func startWork(control, dir, archive *os.File) (*os.Process, error) {
	exe, err := runtimeExecutable()
	if err != nil {
		return nil, err
	}
	null, err := devNull()
	if err != nil {
		return nil, err
	}
	return os.StartProcess("/proc/self/fd/"+strconv.Itoa(childExe), []string{"sandbox-files"}, &os.ProcAttr{
		Env:   []string{nsinit.EnvSocket + "=" + strconv.Itoa(childControl), "GOMAXPROCS=1"},
		Files: []*os.File{null, null, null, childControl: control, childExe: exe.file, childWork: dir, childArchive: archive},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_VFORK | unix.CLONE_VM, Setsid: true, AmbientCaps: allCaps(),
		},
	})
}

const (
	childWork    = childExe + 1
	childArchive = childExe + 2
)

// instruct gives the process its ids, its work and the archive, and returns what
// it says.
func (w treeWork) instruct(ctx context.Context, pid int, control io.ReadWriter, to io.WriteCloser, archive io.Reader) (r workResult, err error) {
	if err := (idMapping{kind: mapSubid}).apply(ctx, pid); err != nil {
		return r, err
	}
	p := &planner{program: newProgram()}
	p.becomeRoot()
	p.prctl("give up new privileges", unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	p.prctl("be of no interest to debuggers", unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	p.add("close what it need not have", nsinit.CloseInherited)
	prog := nsinit.Program{Calls: p.calls, Files: []nsinit.File{{Name: fdWork, FD: childWork}, {Name: fdArchive, FD: childArchive}}}
	if prog.Config, err = json.Marshal(w); err != nil {
		return r, err
	}
	if _, err := control.Write(prog.Encode()); err != nil {
		return r, err
	}
	if archive != nil {
		source := &sourceReader{r: archive}
		_, err := io.Copy(to, source)
		if source.err != nil {
			return r, source.err
		}
		if err != nil && !errors.Is(err, unix.EPIPE) { // then it says why it reads no more
			return r, err
		}
		to.Close()
	}
	var h [nsinit.HeaderSize]byte
	if _, err := io.ReadFull(control, h[:]); err != nil {
		return r, err
	}
	reply, err := readReplyBody(control, h[:])
	switch {
	case err != nil:
		return r, err
	case reply.Step != "":
		return r, fmt.Errorf("%s: %w", reply.Step, reply.Errno)
	}
	return r, json.Unmarshal(reply.Ready, &r)
}

// sourceReader tells errors of reading from those of writing.
type sourceReader struct {
	r   io.Reader
	err error
}

// Read reads and keeps the error.
func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// workMain is what the process does. It never returns.
func workMain(dir *os.File) {
	archive := inherited(fdArchive)
	var w treeWork
	err := json.Unmarshal(nsinit.Config(), &w)
	var r workResult
	if err == nil {
		if w.Op != workUnpack {
			go func() { // nobody may go on when the client is gone
				_, _ = io.Copy(io.Discard, archive)
				os.Exit(1)
			}()
		}
		r.Stats, err = w.do(context.Background(), &folder{dir}, archive)
	}
	if err != nil {
		r.Error, r.Errno = clip(err.Error()), errnoOf(err)
		r.Limit, _ = errors.AsType[*layertar.LimitError](err)
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = nsinit.Ready(b)
	}
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// removeError says what to do about files that cannot be removed any more.
func removeError(err error) error {
	if err == nil || os.Geteuid() == 0 || !errors.Is(err, os.ErrPermission) {
		return err
	}
	return &errdefs.Error{Code: "E2000", Op: "remove files of sandboxes", Message: "some belong to the sub-ids that sandboxes of yours had", Err: err,
		Suggestion: "run once where newuidmap works with the sub-ids as they were, or remove the directories layers and boxes of the state directory as root"}
}
