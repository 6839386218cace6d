package sandboxfn

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// File is a file as an argument or a result of functions, wherever it stands in
// them: its content travels with the call, beside the other data and whatever
// its size. [Open] and [FromBytes] make one. The zero value stands for no file;
// it travels as such.
//
// As an argument it is read when the call begins. The function finds a copy with
// the same name, permission bits and time, which goes when the call ends.
// Content that the worker has had lately is not sent again.
//
// As a result its content is copied to this machine before the call returns,
// into a temporary file that goes on [File.Close], or when no copy of the value
// is in use any more. A function returns what [Open] or FromBytes gave it, or an
// argument of its own.
//
// Methods may be called concurrently. Copies are one file.
type File struct{ f *localFile }

// localFile is a file of this machine, or content that becomes one when a path
// is asked for.
type localFile struct {
	name string
	mode fs.FileMode
	time time.Time
	size int64

	content io.ReaderAt // in place of a path; nil: there is a path

	mu     sync.Mutex
	path   string // guarded by mu
	temp   *tempDir
	err    error // guarded by mu; closed, or why there is no path, or no name
	closed bool  // guarded by mu
}

// tempDir is a folder that goes with what it is for.
type tempDir struct {
	path string
	once sync.Once
	err  error
}

func newTempDir(owner *localFile) (*tempDir, error) {
	path, err := os.MkdirTemp(scratch(), "sandbox-file-")
	if err != nil {
		return nil, fileError("temporary folder", err)
	}
	d := &tempDir{path: path}
	runtime.AddCleanup(owner, func(d *tempDir) { d.remove() }, d)
	return d, nil
}

func (d *tempDir) remove() error {
	if d == nil {
		return nil
	}
	d.once.Do(func() { d.err = removeTree(d.path) })
	return d.err
}

// Open returns the file at path, for a call or as a result. It is read when it
// is sent, and must not change until then. Errors: E4001 where there is none,
// E4003 for what is no regular file.
func Open(path string) (File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return File{}, errdefs.New("E4003", "file "+path, "it is no regular file")
	}
	var abs string
	if err == nil {
		abs, err = filepath.Abs(path)
	}
	if err != nil {
		return File{}, fileError(path, err)
	}
	return File{&localFile{name: baseName(path), path: abs, mode: info.Mode() & permBits, time: info.ModTime(), size: info.Size()}}, nil
}

// FromBytes returns a file with the content b, which must not change, and the
// mode 0644. Of a name with slashes the last element counts. Where that is no
// name of a file, such as "" and "..", every use of the file fails with E4006.
func FromBytes(name string, b []byte) File {
	l := &localFile{mode: 0o644, time: time.Now(), size: int64(len(b)), content: bytes.NewReader(b)}
	if name != "" {
		l.name = filepath.Base(name)
	}
	if !validBase(l.name) {
		l.err = errdefs.New("E4006", fmt.Sprintf("file %q", name), "it is no name of a file")
	}
	return File{l}
}

// Name is the last element of the path; empty for no file.
func (f File) Name() string {
	if f.f == nil {
		return ""
	}
	return f.f.name
}

// Size is the length of the content in bytes, as it was when the value was made.
func (f File) Size() int64 {
	if f.f == nil {
		return 0
	}
	return f.f.size
}

// Path is where the file is on this machine. For content that has come from
// elsewhere, and that of [FromBytes], the first call makes a temporary file,
// which goes with f. It is empty for no file, after Close, and where none can be
// made; [File.Open] then says why.
func (f File) Path() string {
	if f.f == nil {
		return ""
	}
	path, _ := f.f.place()
	return path
}

// place returns the path of the file, and makes it where there is none.
func (l *localFile) place() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != "" || l.err != nil {
		return l.path, l.err
	}
	l.path, l.err = l.materialise()
	return l.path, l.err
}

func (l *localFile) materialise() (string, error) {
	temp, err := newTempDir(l)
	if err != nil {
		return "", err
	}
	l.temp = temp
	path := filepath.Join(temp.path, l.name)
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(w, io.NewSectionReader(l.content, 0, l.size))
		err = errors.Join(err, w.Chmod(l.mode), w.Close())
	}
	if err == nil {
		err = os.Chtimes(path, time.Time{}, l.time)
	}
	if err != nil {
		return "", noSpace(fileError(path, err))
	}
	return path, nil
}

// Open opens the content for reading. The caller closes it.
func (f File) Open() (io.ReadSeekCloser, error) {
	if f.f == nil {
		return nil, errdefs.New("E4001", "open file", "it is no file: the value is zero")
	}
	return f.f.open()
}

func (l *localFile) open() (io.ReadSeekCloser, error) {
	l.mu.Lock()
	path, err := l.path, l.err
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case path == "":
		return section{io.NewSectionReader(l.content, 0, l.size), l}, nil
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	return r, nil
}

// section reads content, which is there as long as somebody does.
type section struct {
	*io.SectionReader
	of *localFile
}

func (section) Close() error { return nil }

// SHA256 is the hash of the content, 64 lower-case hex digits. It reads all of
// it.
func (f File) SHA256() (string, error) {
	_, sum, err := digest(func() (io.ReadCloser, error) { return f.Open() })
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum[:]), nil
}

// Close removes the temporary files of f, if it has any. Neither f nor its
// copies can be used any more. Closing twice, or no file, is not an error; the
// file that [Open] was given stays.
func (f File) Close() error {
	if f.f == nil {
		return nil
	}
	return f.f.shut()
}

func (l *localFile) shut() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.path, l.err = "", errdefs.New("E4000", "file "+l.name, "it has been closed")
	err := l.temp.remove()
	if c, ok := l.content.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Dir is a directory as an argument or a result of functions, as [File] is a
// file: with all that is in it, permission bits and times included, owners not.
// Links go as links, and one that leads out of the directory, or has ".." behind
// a name, makes the call fail with E4003, as does what is neither a file, a
// directory nor a link. [OpenDir] makes one. The zero value stands for none.
type Dir struct{ d *localDir }

type localDir struct {
	localFile // of which only name, path and temp are used
}

// OpenDir returns the directory at path, for a call or as a result. It is read
// when it is sent, and must not change until then. Errors: E4001 where there is
// none, E4003 for what is no directory.
func OpenDir(path string) (Dir, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return Dir{}, errdefs.New("E4003", "file "+path, "it is no directory")
	}
	var abs string
	if err == nil {
		abs, err = filepath.Abs(path)
	}
	if err != nil {
		return Dir{}, fileError(path, err)
	}
	return Dir{&localDir{localFile{name: baseName(path), path: abs}}}, nil
}

// Name is the last element of the path; empty for no directory.
func (d Dir) Name() string {
	if d.d == nil {
		return ""
	}
	return d.d.name
}

// Path is where the directory is on this machine; empty for none and after
// Close.
func (d Dir) Path() string {
	if d.d == nil {
		return ""
	}
	d.d.mu.Lock()
	defer d.d.mu.Unlock()
	return d.d.path
}

// FS is the tree. What leads out of it by links can't be opened. Its root is
// opened by the first use.
func (d Dir) FS() fs.FS { return dirFS{d} }

// dirFS opens the root for each name, so that there is nothing to close.
type dirFS struct{ d Dir }

func (f dirFS) Open(name string) (fs.File, error) {
	path := f.d.Path()
	if path == "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrClosed}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.FS().Open(name)
}

// Close removes the directory if it is the result of a call. Neither d nor its
// copies can be used any more. Closing twice, or none, is not an error; the
// directory that [OpenDir] was given stays.
func (d Dir) Close() error {
	if d.d == nil {
		return nil
	}
	return d.d.shut()
}

// registerFiles says how files travel.
func registerFiles() {
	envelope.RegisterVia(
		func(x envelope.Exporter, f File) (sentFile, error) { return f.send(x) },
		func(i envelope.Importer, s sentFile) (File, error) { return receiveFile(i, s) })
	envelope.RegisterVia(
		func(x envelope.Exporter, d Dir) (sentFile, error) { return d.send(x) },
		func(i envelope.Importer, s sentFile) (Dir, error) { return receiveDir(i, s) })
}

func errNoCall(what string) error {
	return errdefs.New("E9002", "send a file", "a "+what+" goes only with the arguments and the result of a call")
}

func (f File) send(x envelope.Exporter) (sentFile, error) {
	if f.f == nil {
		return sentFile{}, nil
	}
	if x == nil {
		return sentFile{}, errNoCall("File")
	}
	l := f.f
	s := sentFile{Name: l.name, Kind: kindFile, Mode: uint32(l.mode), Time: l.time}
	open := func() (io.ReadCloser, error) { return l.open() }
	return s, s.send(x, open)
}

func (d Dir) send(x envelope.Exporter) (sentFile, error) {
	if d.d == nil {
		return sentFile{}, nil
	}
	if x == nil {
		return sentFile{}, errNoCall("Dir")
	}
	path := d.Path()
	if path == "" {
		return sentFile{}, d.d.err
	}
	info, err := os.Stat(path)
	if err != nil {
		return sentFile{}, fileError(path, err)
	}
	s := sentFile{Name: d.d.name, Kind: kindDir, Mode: uint32(info.Mode().Perm()), Time: info.ModTime()}
	return s, s.send(x, func() (io.ReadCloser, error) { return archiving(path), nil })
}

// send lends content with its size and hash, so that a worker that has it does
// not ask for it. For a result it goes to the caller now.
func (s *sentFile) send(x envelope.Exporter, open func() (io.ReadCloser, error)) (err error) {
	if l, args := x.(*lent); args {
		if s.Size, s.Sum, err = digest(openDuring(l.ctx, open)); err != nil {
			return err
		}
		return s.lendContent(x, open)
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	s.Content, err = x.Export(envelope.LentReader{R: r})
	return err
}

func receiveFile(i envelope.Importer, s sentFile) (File, error) {
	switch {
	case s.Name == "":
		return File{}, nil
	case s.Kind != kindFile || !validBase(s.Name):
		return File{}, errdefs.New("E9005", "receive a file", fmt.Sprintf("kind %q, name %q", s.Kind, s.Name))
	}
	f := &localFile{name: s.Name, mode: fs.FileMode(s.Mode) & permBits, time: s.Time, size: s.Size}
	spooled, err := spoolOf(i, s)
	switch {
	case err != nil:
		return File{}, err
	case spooled != nil:
		f.content, f.size = spooled, spooled.Size()
		return File{f}, nil
	}
	if f.path, err = s.place(i); err != nil {
		return File{}, err
	}
	return File{f}, nil
}

func receiveDir(i envelope.Importer, s sentFile) (Dir, error) {
	switch {
	case s.Name == "":
		return Dir{}, nil
	case s.Kind != kindDir || !validBase(s.Name):
		return Dir{}, errdefs.New("E9005", "receive a directory", fmt.Sprintf("kind %q, name %q", s.Kind, s.Name))
	}
	d := &localDir{localFile{name: s.Name}}
	spooled, err := spoolOf(i, s)
	switch {
	case err != nil:
		return Dir{}, err
	case spooled == nil:
		d.path, err = s.place(i)
		return Dir{d}, err
	}
	defer spooled.Close()
	if d.temp, err = newTempDir(&d.localFile); err != nil {
		return Dir{}, err
	}
	path := filepath.Join(d.temp.path, s.Name)
	what, err := unarchive(during{i.(*lent).ctx, spooled}, path)
	if err == nil && what != foundDir {
		err = malformedTree("it is no directory")
	}
	if err != nil {
		d.temp.remove()
		return Dir{}, noSpace(err)
	}
	d.path = path
	return Dir{d}, nil
}

// spoolOf returns the content of a result; nil in a worker, whose arguments are
// lent.
func spoolOf(i envelope.Importer, s sentFile) (*spooled, error) {
	l, ok := i.(*lent)
	if !ok {
		return nil, nil
	}
	v, err := l.Import(reflect.TypeFor[io.Reader](), s.Content)
	if err != nil {
		return nil, err
	}
	f, ok := v.Interface().(*spooled)
	if !ok {
		return nil, errdefs.New("E9005", "receive a file", "its content is not there")
	}
	return f, nil
}
