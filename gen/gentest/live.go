package gentest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// Progress hears how far a function is.
type Progress func(done, total int)

// Lookup is an alias of a callback.
type Lookup = func(ctx context.Context, key string, more ...string) (value *Tree, found bool, err error)

//sandbox:func
func callBack(ctx context.Context, report Progress, look Lookup, plain func() string, none func()) (string, error) {
	report(1, 2)
	text := plain()
	tree, found, err := look(ctx, "key", "a", "b")
	if err != nil {
		return text, err
	}
	_, again, err := look(ctx, "none")
	report(2, 2)
	return fmt.Sprint(text, tree.Value, found, again, none == nil), err
}

//sandbox:func
func visit(each func(ctx context.Context, t *Tree) error) error {
	for _, v := range []Text{"a", "b", "stop", "c"} {
		if err := each(context.Background(), &Tree{Value: v}); err != nil {
			return err
		}
	}
	return nil
}

//sandbox:func
func pull(numbers iter.Seq[int], trees iter.Seq2[*Tree, error], first int) (sum int, values []Text, err error) {
	for n := range numbers {
		sum += n
		if first--; first == 0 {
			break
		}
	}
	for t, err := range trees {
		if err != nil {
			return sum, values, err
		}
		values = append(values, t.Value)
	}
	return sum, values, nil
}

//sandbox:func
func countAll(words iter.Seq[string]) map[string]int {
	n := make(map[string]int)
	for w := range words {
		n[w]++
	}
	return n
}

//sandbox:func
func upper(w io.Writer, r io.Reader, limit int64) (int64, error) {
	lines, n := bufio.NewScanner(io.LimitReader(r, limit)), int64(0)
	for lines.Scan() {
		m, err := fmt.Fprintln(w, strings.ToUpper(lines.Text()))
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, lines.Err()
}

//sandbox:func
func drain(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// Streams of all four forms, and of bytes.

//sandbox:func
func series(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

//sandbox:func
func seriesOrNot(n int) (iter.Seq[int], error) {
	if n < 0 {
		return nil, errHidden
	}
	return series(n), nil
}

//sandbox:func
func trees(ctx context.Context, values ...string) iter.Seq2[*Tree, error] {
	return func(yield func(*Tree, error) bool) {
		for _, v := range values {
			if v == "" {
				yield(nil, ErrSentinel)
				return
			}
			if !yield(&Tree{Value: Text(v)}, nil) {
				return
			}
		}
	}
}

//sandbox:func
func treesOrNot(ctx context.Context, values []string, fail bool) (iter.Seq2[*Tree, error], error) {
	if fail {
		return nil, &PointerError{Line: 3, Err: io.EOF}
	}
	return trees(ctx, values...), nil
}

//sandbox:func
func doubled(in iter.Seq[int]) iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := range in {
			if !yield(2 * n) {
				return
			}
		}
	}
}

//sandbox:func
func open(text string, n int) (io.ReadCloser, error) {
	if n < 0 {
		return nil, ErrSentinel
	}
	return io.NopCloser(strings.NewReader(strings.Repeat(text, n))), nil
}

//sandbox:func
func openPlain(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

// Batches. What comes of an item does not depend on the others, so that it is
// the same in any batch.

//sandbox:func batch=4 batch_wait=2ms
func lengths(ctx context.Context, texts []string) ([]int, error) {
	if ctx == nil {
		return nil, errors.New("no context")
	}
	n := make([]int, len(texts))
	for i, t := range texts {
		n[i] = len(t)
	}
	return n, nil
}
