package gentest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// live are the cases of parameters that go on during a call.
func live() []Case {
	lookup := func(ctx context.Context, key string, more ...string) (*Tree, bool, error) {
		if key == "none" {
			return nil, false, nil
		}
		return &Tree{Value: Text(key + strings.Join(more, ","))}, len(more) == 2, ctx.Err()
	}
	failing := func(context.Context, string, ...string) (*Tree, bool, error) { return nil, true, ErrSentinel }
	callBackCase := func(name string, look Lookup) Case {
		run := func(call func(Progress) (string, error)) (any, error) {
			var heard []int
			text, err := call(func(done, total int) { heard = append(heard, done, total) })
			return list(text, heard), err
		}
		plain := func() string { return "plain " }
		return Case{"callbacks " + name, func(ctx context.Context) (any, error) {
			return run(func(p Progress) (string, error) { return callBack(ctx, p, look, plain, nil) })
		}, func(ctx context.Context) (any, error) {
			return run(func(p Progress) (string, error) { return CallBack(ctx, p, look, plain, nil) })
		}}
	}
	visitor := func(seen *[]Text) func(context.Context, *Tree) error {
		return func(ctx context.Context, t *Tree) error {
			*seen = append(*seen, t.Value)
			if t.Value == "stop" {
				return fmt.Errorf("at %s: %w", t.Value, ErrSentinel)
			}
			return nil
		}
	}
	pairs := func(values []string, err error) iter.Seq2[*Tree, error] {
		return func(yield func(*Tree, error) bool) {
			for _, v := range values {
				if !yield(&Tree{Value: Text(v)}, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
		}
	}
	pullCase := func(name string, n, first int, values []string, end error) Case {
		return Case{"sequences " + name, func(context.Context) (any, error) {
			sum, got, err := pull(series(n), pairs(values, end), first)
			return list(sum, got), err
		}, func(ctx context.Context) (any, error) {
			sum, got, err := Pull(ctx, series(n), pairs(values, end), first)
			return list(sum, got), err
		}}
	}
	lines := strings.Repeat("some text\n", 5000)
	upperCase := func(name, text string, limit int64, then error) Case {
		run := func(call func(io.Writer, io.Reader) (int64, error)) (any, error) {
			var out strings.Builder
			var in io.Reader = strings.NewReader(text)
			if then != nil {
				in = io.MultiReader(in, failingReader{then})
			}
			n, err := call(&out, in)
			return list(n, out.String()), err
		}
		return Case{"reader and writer " + name, func(context.Context) (any, error) {
			return run(func(w io.Writer, r io.Reader) (int64, error) { return upper(w, r, limit) })
		}, func(ctx context.Context) (any, error) {
			return run(func(w io.Writer, r io.Reader) (int64, error) { return Upper(ctx, w, r, limit) })
		}}
	}
	return []Case{
		callBackCase("that answer", lookup),
		callBackCase("that fail", failing),
		{"callback alone", func(context.Context) (any, error) {
			var seen []Text
			err := visit(visitor(&seen))
			return seen, err
		}, func(ctx context.Context) (any, error) {
			var seen []Text
			err := Visit(ctx, visitor(&seen))
			return seen, err
		}},
		pullCase("all", 100, 0, []string{"a", "b"}, nil),
		pullCase("some", 1000, 10, nil, nil),
		pullCase("that fail", 0, 0, []string{"a"}, fmt.Errorf("no more: %w", io.ErrUnexpectedEOF)),
		{"sequence alone", func(context.Context) (any, error) {
			return countAll(slices.Values([]string{"a", "b", "a"})), nil
		},
			func(ctx context.Context) (any, error) {
				return CountAll(ctx, slices.Values([]string{"a", "b", "a"}))
			}},
		upperCase("all", lines, 1<<30, nil),
		upperCase("some", lines, 100, nil),
		upperCase("that fail", "a\nb\n", 1<<30, ErrSentinel),
		{"reader alone", func(context.Context) (any, error) { return drain(strings.NewReader(lines)) },
			func(ctx context.Context) (any, error) { return Drain(ctx, strings.NewReader(lines)) }},
	}
}

// failingReader ends with an error.
type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// drained is what comes of a sequence, up to most items.
func drained[T any](s iter.Seq2[T, error], most int) (any, error) {
	var items []T
	for v, err := range s {
		if err != nil {
			return items, err
		}
		if items = append(items, v); len(items) == most {
			break
		}
	}
	return items, nil
}

// paired gives a plain sequence the form of a stream.
func paired[T any](s iter.Seq[T], err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		for v := range s {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// streams are the cases of results that go on after the call.
func streams() []Case {
	const all = 1 << 30
	treesCase := func(name string, most int, values ...string) Case {
		return Case{"stream with errors " + name, func(ctx context.Context) (any, error) { return drained(trees(ctx, values...), most) },
			func(ctx context.Context) (any, error) { return drained(Trees(ctx, values...), most) }}
	}
	readCase := func(name, text string, n int) Case {
		read := func(r io.ReadCloser, err error) (any, error) {
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(r)
			return string(b), errors.Join(err, r.Close())
		}
		return Case{"read " + name, func(context.Context) (any, error) { return read(open(text, n)) },
			func(ctx context.Context) (any, error) { return read(Open(ctx, text, n)) }}
	}
	cases := []Case{
		{"stream", func(context.Context) (any, error) { return drained(paired(series(500), nil), all) },
			func(ctx context.Context) (any, error) { return drained(Series(ctx, 500), all) }},
		{"stream left", func(context.Context) (any, error) { return drained(paired(series(1<<20), nil), 7) },
			func(ctx context.Context) (any, error) { return drained(Series(ctx, 1<<20), 7) }},
		{"stream of nothing", func(context.Context) (any, error) { return drained(paired(series(0), nil), all) },
			func(ctx context.Context) (any, error) { return drained(Series(ctx, 0), all) }},
		treesCase("without", all, "a", "b"), treesCase("at last", all, "a", ""), treesCase("left", 1, "a", "b"),
		{"stream of a stream", func(context.Context) (any, error) { return drained(paired(doubled(series(300)), nil), all) },
			func(ctx context.Context) (any, error) { return drained(Doubled(ctx, series(300)), all) }},
		readCase("nothing", "x", 0), readCase("much", "0123456789abcdef", 1<<15), readCase("error", "", -1),
		{"read without error", func(context.Context) (any, error) { return io.ReadAll(openPlain("text")) },
			func(ctx context.Context) (any, error) {
				r, err := OpenPlain(ctx, "text")
				if err != nil {
					return nil, err
				}
				defer r.Close()
				return io.ReadAll(r)
			}},
	}
	for _, n := range []int{3, -1} {
		cases = append(cases, Case{fmt.Sprint("stream or error ", n), func(context.Context) (any, error) {
			return drained(paired(seriesOrNot(n)), all)
		}, func(ctx context.Context) (any, error) { return drained(SeriesOrNot(ctx, n), all) }})
	}
	for _, fail := range []bool{false, true} {
		cases = append(cases, Case{fmt.Sprint("stream with errors or error ", fail), func(ctx context.Context) (any, error) {
			s, err := treesOrNot(ctx, []string{"a", ""}, fail)
			if err != nil {
				return drained(paired[*Tree](nil, err), all)
			}
			return drained(s, all)
		}, func(ctx context.Context) (any, error) {
			return drained(TreesOrNot(ctx, []string{"a", ""}, fail), all)
		}})
	}
	return cases
}

// together makes n calls at once and gathers what comes of them.
func together[T any](n int, call func(i int) (T, error)) (any, error) {
	values, errs := make([]T, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { values[i], errs[i] = call(i) })
	}
	wg.Wait()
	return values, errors.Join(errs...)
}

func batches() []Case {
	texts := []string{"", "a", "bb", "ccc", "dddd", "éé", "x"}
	return []Case{
		{"batch", func(ctx context.Context) (any, error) { return lengths(ctx, texts) },
			func(ctx context.Context) (any, error) {
				return together(len(texts), func(i int) (int, error) { return Lengths(ctx, texts[i]) })
			}},
		{"batch of one", func(context.Context) (any, error) { r := halves(3)[0]; return r.Value, r.Err },
			func(ctx context.Context) (any, error) { return Halves(ctx, 3) }},
		{"batch with an error for each", func(context.Context) (any, error) {
			return together(6, func(i int) (Celsius, error) { r := halves(2 - i)[0]; return r.Value, r.Err })
		}, func(ctx context.Context) (any, error) {
			return together(6, func(i int) (Celsius, error) { return Halves(ctx, 2-i) })
		}},
		{"batch checked", func(context.Context) (any, error) { return lengths(context.Background(), []string{"a"}) },
			func(ctx context.Context) (any, error) { return LengthsFunc.Collect(ctx, []string{"a"}) }},
		{"fields that are filled", func(context.Context) (any, error) {
			filled := Tagged{Size: 7, Names: []string{"a", "b"}, Mode: "fast"}
			return fillIn(filled, &filled)
		}, func(ctx context.Context) (any, error) {
			return FillIn(ctx, Tagged{Mode: "lost", Kept: "lost"}, &Tagged{})
		}},
		{"fields that are given", func(context.Context) (any, error) {
			return fillIn(Tagged{Size: 1, Names: []string{"x"}, Mode: "fast"}, nil)
		}, func(ctx context.Context) (any, error) { return FillIn(ctx, Tagged{Size: 1, Names: []string{"x"}}, nil) }},
	}
}

func classes() []Case {
	plain := func(p CounterParams) *counter {
		c := &counter{base: base{Name: p.Name}, Limits: &Limits{p.Max}, Start: p.Start, Step: p.Step, Unit: "m", entered: true}
		if c.Step == 0 {
			c.Step = 2
		}
		return c
	}
	counterCase := func(name string, p CounterParams, n int) Case {
		return Case{"class " + name, func(ctx context.Context) (any, error) {
			v, text, err := plain(p).at(ctx, n)
			return list(v, text), err
		}, func(ctx context.Context) (any, error) {
			c := NewCounter(p, nil)
			v, text, err := c.At(ctx, n)
			if err := c.Close(); err != nil {
				return nil, err
			}
			return list(v, text), err
		}}
	}
	params := CounterParams{Name: "c", Start: 10, Step: 3}
	return []Case{
		counterCase("with defaults", CounterParams{Name: "d"}, 4),
		counterCase("with parameters", params, 2),
		counterCase("whose method fails", CounterParams{Name: "e", Max: 5, Start: 4}, 1),
		{"class that streams", func(context.Context) (any, error) { return drained(paired(plain(params).from(1), nil), 1<<30) },
			func(ctx context.Context) (any, error) {
				c := NewCounter(params, nil)
				defer c.Close()
				return drained(c.From(ctx, 1), 1<<30)
			}},
		{"class with batches", func(context.Context) (any, error) { return plain(params).all([]int{0, 1, 2, 3}), nil },
			func(ctx context.Context) (any, error) {
				c := NewCounter(params, nil)
				defer c.Close()
				return together(4, func(i int) (int, error) { return c.All(ctx, i) })
			}},
		{"class with callbacks", func(context.Context) (any, error) {
			var heard string
			text := title{"t"}.Title(func(s string) { heard += s })
			return list(text, heard), nil
		}, func(ctx context.Context) (any, error) {
			var heard string
			t := NewTitle(TitleParams{Text: "t"}, nil)
			defer t.Close()
			text, err := t.Title(ctx, func(s string) { heard += s })
			return list(text, heard), err
		}},
	}
}

// inFolder runs f with a folder of its own and returns what is in it afterwards.
func inFolder(f func(dir string) (any, error)) (any, error) {
	dir, err := os.MkdirTemp("", "gentest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"src": "text ", "more": "more", "tree/a": "1", "tree/b": "2"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return nil, err
		}
	}
	got, err := f(dir)
	out, readErr := os.ReadFile(filepath.Join(dir, "dst"))
	if errors.Is(readErr, os.ErrNotExist) {
		readErr = nil
	}
	if err == nil {
		err = readErr
	}
	return list(got, string(out)), err
}

func paths() []Case {
	at := filepath.Join
	stamped := func(f sandboxfn.File, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b, err := os.ReadFile(f.Path())
		return list(f.Name(), f.Size(), string(b)), err
	}
	return []Case{
		{"paths of parameters", func(context.Context) (any, error) {
			return inFolder(func(d string) (any, error) { return convert(at(d, "src"), at(d, "dst"), []string{at(d, "more")}) })
		}, func(ctx context.Context) (any, error) {
			return inFolder(func(d string) (any, error) { return Convert(ctx, at(d, "src"), at(d, "dst"), []string{at(d, "more")}) })
		}},
		{"paths of fields", func(context.Context) (any, error) {
			return inFolder(func(d string) (any, error) { return work(&Job{at(d, "src"), at(d, "tree"), at(d, "dst")}) })
		}, func(ctx context.Context) (any, error) {
			return inFolder(func(d string) (any, error) { return Work(ctx, &Job{at(d, "src"), at(d, "tree"), at(d, "dst")}) })
		}},
		{"files as values", func(context.Context) (any, error) {
			return stamped(stamp(sandboxfn.FromBytes("name", []byte("text")), "!"))
		},
			func(ctx context.Context) (any, error) {
				return stamped(Stamp(ctx, sandboxfn.FromBytes("name", []byte("text")), "!"))
			}},
	}
}
