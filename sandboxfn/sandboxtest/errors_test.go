package sandboxtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

var errEmpty = errors.New("empty")

// ParseErr travels with its data.
type ParseErr struct {
	Line int
	Err  error
}

func (e *ParseErr) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *ParseErr) Unwrap() error { return e.Err }

// Code is an error that is no pointer.
type Code int

func (c Code) Error() string        { return "code " + strconv.Itoa(int(c)) }
func (c Code) Is(target error) bool { return target == fs.ErrExist && c == 17 }

// Hidden has data that can't travel.
type Hidden struct {
	cause error
	Ch    chan int
}

func (e *Hidden) Error() string        { return "hidden" }
func (e *Hidden) Unwrap() error        { return e.cause }
func (e *Hidden) Is(target error) bool { return target == io.ErrNoProgress }

var failures = map[string]func() error{
	"nil":               func() error { return nil },
	"sentinel":          func() error { return errEmpty },
	"standard sentinel": func() error { return io.EOF },
	"buffer sentinel":   func() error { return bufio.ErrTooLong },
	"deadline":          func() error { return context.DeadlineExceeded },
	"canceled":          func() error { return context.Canceled },
	"chain":             func() error { return fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", errEmpty)) },
	"open": func() error {
		_, err := os.Open("/does/not/exist")
		return fmt.Errorf("open: %w", err)
	},
	"join":         func() error { return errors.Join(errEmpty, fmt.Errorf("b: %w", io.EOF)) },
	"several":      func() error { return fmt.Errorf("%w and %w", errEmpty, &ParseErr{3, io.EOF}) },
	"typed":        func() error { return &ParseErr{7, fmt.Errorf("x: %w", io.ErrUnexpectedEOF)} },
	"typed value":  func() error { return Code(17) },
	"typed nil":    func() error { return (*fs.PathError)(nil) },
	"number":       func() error { _, err := strconv.Atoi("x"); return err },
	"dial":         func() error { _, err := net.Dial("tcp", "127.0.0.1:1"); return err },
	"plain":        func() error { return errors.New("plain") },
	"unknown type": func() error { return &Hidden{cause: fmt.Errorf("why: %w", errEmpty)} },
	"long text":    func() error { return errors.New(strings.Repeat("x", 100_000)) },
}

var fail = declare("fail", func(_ context.Context, name string) (int, error) { return 42, failures[name]() })

// What errors.Is and errors.As say must be what they say of the local error.
func TestErrorIdentity(t *testing.T) {
	sentinels := []error{errEmpty, io.EOF, io.ErrUnexpectedEOF, io.ErrNoProgress, bufio.ErrTooLong, context.DeadlineExceeded, context.Canceled,
		fs.ErrNotExist, fs.ErrExist, strconv.ErrSyntax, os.ErrDeadlineExceeded}
	types := []any{new(*ParseErr), new(Code), new(*fs.PathError), new(*strconv.NumError), new(*net.OpError), new(*os.SyscallError)}
	for mode, begin := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(mode, func(t *testing.T) {
			ctx := begin(t)
			for name, f := range failures {
				t.Run(name, func(t *testing.T) {
					want := f()
					n, got := fail.Call(ctx, name)
					if n != 42 {
						t.Errorf("the result is %d, want 42 beside the error", n)
					}
					if (got == nil) != (want == nil) {
						t.Fatalf("got %v, want %v", got, want)
					}
					if want == nil || name == "typed nil" {
						return
					}
					if got.Error() != want.Error() {
						t.Errorf("text %q, want %q", got, want)
					}
					for _, s := range sentinels {
						if g, w := errors.Is(got, s), errors.Is(want, s); g != w {
							t.Errorf("errors.Is(%v) = %v, want %v", s, g, w)
						}
						if (got == s) != (want == s) {
							t.Errorf("== %v is %v, want %v", s, got == s, want == s)
						}
					}
					for _, typ := range types {
						a, b := reflect.New(reflect.TypeOf(typ).Elem()), reflect.New(reflect.TypeOf(typ).Elem())
						g, w := errors.As(got, a.Interface()), errors.As(want, b.Interface())
						if g != w || g && fmt.Sprint(a.Elem()) != fmt.Sprint(b.Elem()) {
							t.Errorf("errors.As(%v) = %v %v, want %v %v", reflect.TypeOf(typ).Elem(), g, a.Elem(), w, b.Elem())
						}
					}
					if g, w := errors.Unwrap(got) != nil, errors.Unwrap(want) != nil; g != w && name != "unknown type" {
						t.Errorf("unwraps %v, want %v", g, w)
					}
				})
			}
		})
	}
}

func TestTypedErrorsAreRebuilt(t *testing.T) {
	ctx := sandboxtest.Process(t)
	_, err := fail.Call(ctx, "typed")
	if p, ok := err.(*ParseErr); !ok || p.Line != 7 || !errors.Is(p.Err, io.ErrUnexpectedEOF) {
		t.Errorf("got %#v", err)
	}
	if _, err = fail.Call(ctx, "typed value"); err != Code(17) {
		t.Errorf("got %#v", err)
	}
	_, err = fail.Call(ctx, "typed nil")
	if p, ok := err.(*fs.PathError); !ok || p != nil {
		t.Errorf("got %#v", err)
	}
	_, err = fail.Call(ctx, "dial")
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr.String() != "127.0.0.1:1" {
		t.Errorf("got %#v", err)
	}
}

func TestRemoteError(t *testing.T) {
	_, err := fail.Call(sandboxtest.Process(t), "unknown type")
	var r *sandboxfn.RemoteError
	if !errors.As(err, &r) || r.Type != "*"+self+".Hidden" || r.Text != "hidden" {
		t.Fatalf("got %#v", err)
	}
	if !errors.Is(err, io.ErrNoProgress) || !errors.Is(err, errEmpty) || errors.Is(err, io.EOF) {
		t.Errorf("identity lost: %#v", r)
	}
}

type report struct {
	First  error
	Others []error
	Last   *error
}

var reports = declare("reports", func(_ context.Context, r report) (report, error) { return r, nil })

func TestErrorsInData(t *testing.T) {
	in := report{errEmpty, []error{nil, &ParseErr{1, io.EOF}, fmt.Errorf("x: %w", fs.ErrExist)}, ptr(error(nil))}
	out, err := reports.Call(sandboxtest.Process(t), in)
	if err != nil {
		t.Fatal(err)
	}
	if out.First != errEmpty || out.Others[0] != nil || !reflect.DeepEqual(out.Others[1], in.Others[1]) ||
		!errors.Is(out.Others[2], fs.ErrExist) || out.Last == nil || *out.Last != nil {
		t.Errorf("got %#v", out)
	}
}
