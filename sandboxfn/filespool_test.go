package sandboxfn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestHoldsFiles(t *testing.T) {
	type node struct {
		Next *node
		Text string
		file File // it does not travel
	}
	type deep struct {
		Next *deep
		List []map[string]*struct{ D Dir }
	}
	for _, c := range []struct {
		v    any
		want bool
	}{
		{new(int), false}, {new(node), false}, {new([]byte), false}, {new(error), false}, {new(None), false},
		{new(File), true}, {new(Dir), true}, {new(deep), true}, {new([2]File), true}, {new(any), true}, {new(struct{ node }), false},
		{new(struct{ deep }), true},
	} {
		for range 2 {
			if got := holdsFiles(reflect.TypeOf(c.v)); got != c.want {
				t.Errorf("%T: %v, want %v", c.v, got, c.want)
			}
		}
	}
	_ = node{}.file
}

// A worker has no room for files when the function returns none.
func TestSpoolRefused(t *testing.T) {
	for name, l := range map[string]*lent{
		"no call":  {},
		"no files": {fn: newFunction[int, map[string]int](Decl{Name: "f"})},
	} {
		if _, err := l.newSpool(); errdefs.CodeOf(err) != "E9005" {
			t.Errorf("%s: %v", name, err)
		}
		if l.spools != nil {
			t.Errorf("%s: it has made a file", name)
		}
		l.end(nil)
	}
}

// The files of a result are in one file, which is closed with the last of them.
func TestSpools(t *testing.T) {
	open := func() int {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(es)
	}
	l := &lent{fn: newFunction[int, []File](Decl{Name: "f"})}
	before := open()
	const n = 2000
	for i := range n {
		id, err := l.newSpool()
		if err != nil || id != uint64(i) {
			t.Fatalf("%d, %v", id, err)
		}
		if i == 7 {
			continue // empty
		}
		for _, text := range []string{"file ", fmt.Sprint(i)} {
			if _, err := io.WriteString(spoolAt(l, id), text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := io.WriteString(spoolAt(l, 0), "more"); errdefs.CodeOf(err) != "E9005" {
		t.Errorf("a write to a file that has ended: %v", err)
	}
	if got := open(); got > before+10 { // of other tests
		t.Errorf("%d descriptors, %d before", got, before)
	}
	var got []*spooled
	for _, id := range []uint64{0, 7, n - 1} {
		v, err := l.Import(reflect.TypeFor[io.Reader](), id)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v.Interface().(*spooled))
		if _, err := l.Import(reflect.TypeFor[io.Reader](), id); errdefs.CodeOf(err) != "E9005" {
			t.Errorf("%d twice: %v", id, err)
		}
	}
	file := l.spools.f
	l.end(nil)
	l.end(nil)
	if _, err := l.newSpool(); err == nil {
		t.Error("after the call there is room")
	}
	for i, want := range []string{"file 0", "", fmt.Sprint("file ", n-1)} {
		b, err := io.ReadAll(got[i])
		if err != nil || string(b) != want || got[i].Size() != int64(len(want)) {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
		if err := errors.Join(got[i].Close(), got[i].Close()); err != nil {
			t.Error(err)
		}
	}
	if _, err := file.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
}

func spoolAt(l *lent, id uint64) *spool {
	o, err := l.object(id)
	if err != nil {
		panic(err)
	}
	return o.v.(*spool)
}

// The bytes of a result have a limit, and so has the number of its files.
func TestSpoolLimits(t *testing.T) {
	l := &lent{fn: newFunction[int, File](Decl{Name: "f"})}
	defer l.end(nil)
	id, err := l.newSpool()
	if err != nil {
		t.Fatal(err)
	}
	l.spools.end = maxFileBytes - 3
	if _, err := io.WriteString(spoolAt(l, id), "four"); !errors.Is(err, ErrPayloadTooLarge) {
		t.Errorf("bytes: %v", err)
	}
	l.spools.n = maxSpools
	if _, err := l.newSpool(); !errors.Is(err, ErrPayloadTooLarge) {
		t.Errorf("files: %v", err)
	}
}
