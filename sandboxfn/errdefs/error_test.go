package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"testing"
)

func TestIs(t *testing.T) {
	timeout := Wrap("E3001", "run sleep", "timed out after 1s", fs.ErrInvalid)
	for _, c := range []struct {
		name   string
		err    error
		target error
		want   bool
	}{
		{"same code", timeout, ErrCommandTimeout, true},
		{"class", timeout, ErrExec, true},
		{"other class", timeout, ErrFile, false},
		{"other code of the class", timeout, ErrCommandNotFound, false},
		{"any timeout", timeout, ErrTimeout, true},
		{"context", timeout, context.DeadlineExceeded, true},
		{"not a timeout", New("E3007", "run", "x"), context.DeadlineExceeded, false},
		{"cause", timeout, fs.ErrInvalid, true},
		{"through a wrap", fmt.Errorf("build: %w", timeout), ErrExec, true},
		{"a full error is no sentinel", timeout, New("E3001", "other", "text"), false},
	} {
		if got := errors.Is(c.err, c.target); got != c.want {
			t.Errorf("%s: errors.Is = %v, want %v", c.name, got, c.want)
		}
	}
}

// Codes are what the standard library calls the same case, and nothing else.
func TestLikeTheStandardLibrary(t *testing.T) {
	standard := []error{fs.ErrNotExist, fs.ErrPermission, fs.ErrExist, fs.ErrInvalid, errors.ErrUnsupported, context.DeadlineExceeded, os.ErrDeadlineExceeded, context.Canceled, fs.ErrClosed}
	clock := []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}
	want := map[Code][]error{
		"E4001": {fs.ErrNotExist}, "E4002": {fs.ErrPermission}, "E4005": {fs.ErrExist}, "E4006": {fs.ErrInvalid},
		"E8004": {errors.ErrUnsupported}, "E8020": {fs.ErrPermission}, "E8021": {fs.ErrPermission},
		"E3001": clock, "E5002": clock, "E7011": clock, "E9013": clock,
	}
	for _, c := range Codes() {
		for _, target := range standard {
			err := fmt.Errorf("wrapped: %w", Wrap(c, "op", "text", errors.New("cause")))
			if got := errors.Is(err, target); got != slices.Contains(want[c], target) {
				t.Errorf("%s is %v: %v", c, target, got)
			}
		}
		if c.Timeout() != slices.Contains(want[c], error(context.DeadlineExceeded)) || c.Like() != nil && !slices.Contains(want[c], c.Like()) {
			t.Errorf("%s: %v, %v", c, c.Timeout(), c.Like())
		}
	}
}

func TestTable(t *testing.T) {
	form := regexp.MustCompile(`^E[1-9][0-9]{3}$`)
	seen := map[Code]bool{}
	last := Code("")
	for _, c := range Codes() {
		if !form.MatchString(string(c)) {
			t.Errorf("code %q is malformed", c)
		}
		if seen[c] || c <= last {
			t.Errorf("code %s is repeated or out of order", c)
		}
		if c.Meaning() == "" {
			t.Errorf("code %s has no meaning", c)
		}
		if !seen[c.Class()] && !c.isClass() {
			t.Errorf("class of %s is not in the table", c)
		}
		seen[c], last = true, c
	}
}

func TestErrorText(t *testing.T) {
	e := Wrap("E2020", "connect", `sandbox "x" unknown`, errors.New("cause"))
	if got, want := e.Error(), `E2020 connect: sandbox "x" unknown: cause`; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	for message, want := range map[string]string{"path x: no such file": "E4001 open: path x: no such file", "": "E4001 open: no such file"} {
		if got := Wrap("E4001", "open", message, errors.New("no such file")).Error(); got != want {
			t.Errorf("text %q, want %q", got, want)
		}
	}
	if e.Hint() == "" || CodeOf(fmt.Errorf("a: %w", e)) != "E2020" || CodeOf(errors.New("b")) != "" {
		t.Error("hint or code lost")
	}
	outer := Wrap("E9015", "call f", "step create", fmt.Errorf("wrapped: %w", &Error{Code: "E8007", Suggestion: "chmod 700 it"}))
	if got := outer.Hint(); got != "chmod 700 it" {
		t.Errorf("hint of the cause: %q", got)
	}
}
