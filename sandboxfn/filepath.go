package sandboxfn

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Parameters that in= and out= name, and fields tagged file, dir and out, are
// strings that travel as the paths below: the caller lends what they name, the
// worker puts it into the call's folder and the path of that into the argument.

// pathUse says what a path of the caller is for.
type pathUse struct {
	in, out   bool
	file, dir bool // it must be one; neither: it may be either
}

// use is implemented by types, so that a path's type tells its use.
type use interface{ use() pathUse }

type (
	useIn      struct{}
	useOut     struct{}
	useInOut   struct{}
	useFileIn  struct{}
	useFileOut struct{}
	useDirIn   struct{}
	useDirOut  struct{}
)

func (useIn) use() pathUse      { return pathUse{in: true} }
func (useOut) use() pathUse     { return pathUse{out: true} }
func (useInOut) use() pathUse   { return pathUse{in: true, out: true} }
func (useFileIn) use() pathUse  { return pathUse{in: true, file: true} }
func (useFileOut) use() pathUse { return pathUse{out: true, file: true} }
func (useDirIn) use() pathUse   { return pathUse{in: true, dir: true} }
func (useDirOut) use() pathUse  { return pathUse{out: true, dir: true} }

type (
	pathAs[U use]  string
	pathsAs[U use] []string
)

// pathTypes are the types of paths, and of lists of them, by their use.
var pathTypes = map[pathUse][2]reflect.Type{}

func registerPath[U use]() {
	var u U
	to := func(x envelope.Exporter, path string) (sentFile, error) { return sendPath(x, path, u.use()) }
	from := func(i envelope.Importer, s sentFile) (string, error) { return receivePath(i, s) }
	envelope.RegisterVia(
		func(x envelope.Exporter, path pathAs[U]) (sentFile, error) { return to(x, string(path)) },
		func(i envelope.Importer, s sentFile) (pathAs[U], error) {
			path, err := from(i, s)
			return pathAs[U](path), err
		})
	envelope.RegisterVia(
		func(x envelope.Exporter, paths pathsAs[U]) ([]sentFile, error) { return each(x, paths, to) },
		func(i envelope.Importer, list []sentFile) (pathsAs[U], error) { return each(i, list, from) })
	pathTypes[u.use()] = [2]reflect.Type{reflect.TypeFor[pathAs[U]](), reflect.TypeFor[pathsAs[U]]()}
}

// each converts a list; nil stays nil.
func each[X, A, B any](x X, list []A, convert func(X, A) (B, error)) ([]B, error) {
	if list == nil {
		return nil, nil
	}
	out := make([]B, len(list))
	for i, a := range list {
		b, err := convert(x, a)
		if err != nil {
			return nil, err
		}
		out[i] = b
	}
	return out, nil
}

func init() {
	registerPath[useIn]()
	registerPath[useOut]()
	registerPath[useInOut]()
	registerPath[useFileIn]()
	registerPath[useFileOut]()
	registerPath[useDirIn]()
	registerPath[useDirOut]()
	envelope.RegisterTags(pathOfTag)
	registerFiles()
}

// pathOfTag is the type as which a field of type t with a sandbox tag travels;
// nil: as t.
func pathOfTag(tag string, t reflect.Type) reflect.Type {
	if tag == "" {
		return nil
	}
	var u pathUse
	for _, it := range envelope.TagItems(reflect.StructTag("sandbox:" + strconv.Quote(tag))) {
		switch it.Key {
		case "file":
			u.file = true
		case "dir":
			u.dir = true
		case "out":
			u.out = true
		}
	}
	u.in = !u.out
	if !u.file && !u.dir {
		return nil
	}
	return pathType(u, t)
}

// pathOfParam is the same for a parameter.
func pathOfParam(p Param, t reflect.Type) reflect.Type {
	if !p.In && !p.Out {
		return nil
	}
	return pathType(pathUse{in: p.In, out: p.Out}, t)
}

func pathType(u pathUse, t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice {
		return pathTypes[u][1]
	}
	return pathTypes[u][0]
}

// sentFile is a file or directory of the caller, as it goes with a call.
type sentFile struct {
	Name    string // the last element of its path; empty: there is none
	Kind    string // "", "file" or "dir"
	Mode    uint32
	Time    time.Time
	Size    int64
	Sum     [32]byte // of the content: for a directory, that of its archive
	Content uint64   // the reader of it that is lent
	Back    uint64   // the writer for what comes out that is lent, and one; 0: none
}

const (
	kindFile = "file"
	kindDir  = "dir"
)

// lender checks that files go with a call's arguments.
func lender(x envelope.Exporter) error {
	if _, ok := x.(*lent); !ok {
		return errdefs.New("E9002", "send a path", "a path of the caller goes only with the arguments of a call; return a sandboxfn.File or a sandboxfn.Dir")
	}
	return nil
}

// sendPath lends what is at a path of the caller.
func sendPath(x envelope.Exporter, path string, u pathUse) (sentFile, error) {
	if err := lender(x); err != nil {
		return sentFile{}, err
	}
	if path == "" {
		return sentFile{}, nil
	}
	s := sentFile{Name: baseName(path)}
	if u.in {
		if err := s.lend(x, path, u); err != nil {
			return s, err
		}
	}
	if u.out {
		back, err := newReturning(path, u)
		if err == nil {
			err = x.(*lent).addOutput(back.path)
		}
		if err != nil {
			return s, err
		}
		n, err := x.Export(envelope.LentWriter{W: back})
		if err != nil {
			return s, err
		}
		x.After(back.end)
		s.Back = n + 1
	}
	return s, nil
}

// baseName is what the worker sees of a path.
func baseName(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if name := filepath.Base(path); validBase(name) {
		return name
	}
	return "root"
}

func validBase(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00") && len(name) < 256
}

// lend lends the content of a file or directory.
func (s *sentFile) lend(x envelope.Exporter, path string, u pathUse) error {
	info, err := os.Stat(path)
	if err != nil {
		return fileError(path, err)
	}
	isDir := info.IsDir()
	switch {
	case u.file && isDir:
		return errdefs.New("E4003", "file "+path, "it is a directory")
	case u.dir && !isDir:
		return errdefs.New("E4003", "file "+path, "it is no directory")
	case !isDir && !info.Mode().IsRegular():
		return errdefs.New("E4003", "file "+path, "it is neither a file nor a directory")
	}
	s.Kind, s.Mode, s.Time = kindFile, uint32(info.Mode().Perm()), info.ModTime()
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	if isDir {
		s.Kind, open = kindDir, func() (io.ReadCloser, error) { return archiving(path), nil }
	}
	if s.Size, s.Sum, err = digest(openDuring(x.(*lent).ctx, open)); err != nil {
		return fileError(path, err)
	}
	return s.lendContent(x, open)
}

func (s *sentFile) lendContent(x envelope.Exporter, open func() (io.ReadCloser, error)) (err error) {
	s.Content, err = x.Export(envelope.LentReader{R: &lentContent{open}})
	return err
}

// archiving is the archive of a directory, made while it is read.
func archiving(path string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive(w, path)) }()
	return r
}

var errChanged = errdefs.New("E9005", "receive a file", "its content is not what was announced: it changed while it was sent")

// receivePath puts what the caller lends into a folder of the call, and returns
// its path.
func receivePath(i envelope.Importer, s sentFile) (string, error) {
	path, err := s.place(i)
	if err != nil || path == "" || s.Back == 0 {
		return path, err
	}
	v, err := i.Import(reflect.TypeFor[io.Writer](), s.Back-1)
	if err != nil {
		return "", err
	}
	i.Returned(func() error { return sendBack(v.Interface().(io.Writer), path) })
	return path, nil
}

// sendBack sends what a function has left at path.
func sendBack(w io.Writer, path string) error {
	b := &blocks{w: w}
	err := archive(b, path)
	if err == nil {
		err = b.flush()
	}
	if err != nil && errdefs.CodeOf(err) == "" {
		err = errdefs.Wrap("E4000", "send "+filepath.Base(path), "", err)
	}
	return err
}

// place makes a folder of the call with what was lent in it.
func (s *sentFile) place(i envelope.Importer) (string, error) {
	if s.Name == "" {
		return "", nil
	}
	if !validBase(s.Name) || s.Size < 0 {
		return "", errdefs.New("E9005", "receive a file", fmt.Sprintf("name %q", s.Name))
	}
	if i == nil {
		return "", errdefs.New("E9005", "receive a file", "outside of a call")
	}
	folder, err := os.MkdirTemp(scratch(), "sandbox-call-")
	if err != nil {
		return "", fileError("folder of the call", err)
	}
	i.Ended(func() { removeTree(folder) })
	path := filepath.Join(folder, s.Name)
	if s.Kind == "" {
		return path, nil
	}
	v, err := i.Import(reflect.TypeFor[io.Reader](), s.Content)
	if err != nil {
		return "", err
	}
	return path, s.fill(v.Interface().(io.Reader), path)
}

// fill makes the file or directory at path.
func (s *sentFile) fill(r io.Reader, path string) error {
	switch s.Kind {
	case kindFile:
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fileError(path, err)
		}
		err = contents.fetch(f, r, s.Size, s.Sum)
		if err == nil {
			err = f.Chmod(fs.FileMode(s.Mode) & permBits)
		}
		if bad := f.Close(); err == nil {
			err = bad
		}
		if err == nil {
			err = os.Chtimes(path, time.Time{}, s.Time)
		}
		return noSpace(err)
	case kindDir:
		pr, pw := io.Pipe()
		fetched := make(chan error, 1)
		go func() {
			err := contents.fetch(pw, r, s.Size, s.Sum)
			pw.CloseWithError(err)
			fetched <- err
		}()
		what, err := unarchive(pr, path)
		pr.CloseWithError(errors.Join(io.ErrClosedPipe, err)) // it may have ended early
		if bad := <-fetched; err == nil {
			err = bad
		}
		if err == nil && what != foundDir {
			err = malformedTree("it is no directory")
		}
		return noSpace(err)
	}
	return errdefs.New("E9005", "receive a file", fmt.Sprintf("kind %q", s.Kind))
}
