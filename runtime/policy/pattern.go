package policy

import (
	"math/bits"
	"path"
	"strings"
)

// anyDepth, as an element of a pattern, stands for any number of elements of a path.
const anyDepth = "**"

// pattern is a pattern of paths, in elements. What it matches, it matches with
// all that lies below.
type pattern struct {
	text  string
	elems []string
}

// maxElems bounds the elements of a pattern, so that a set of places in it is a
// word with a bit to spare for its end.
const maxElems = 63

// compilePattern reads a pattern: absolute, elements as path.Match knows them.
func compilePattern(text string) (*pattern, error) {
	rest, ok := strings.CutPrefix(text, "/")
	switch {
	case !ok && !strings.HasPrefix(text, anyDepth+"/"):
		return nil, invalid("files.deny: %q does not begin with a slash; for any folder, write %q", text, "**/"+text)
	case path.Clean(text) != text && path.Clean(text)+"/" != text:
		return nil, invalid("files.deny: %q is not clean; write %q", text, path.Clean(text))
	}
	p := &pattern{text: text}
	for elem := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), "/") {
		if elem == "" { // "/" alone
			continue
		}
		if n := len(p.elems); elem == anyDepth && n > 0 && p.elems[n-1] == anyDepth {
			continue
		}
		if _, err := path.Match(elem, ""); err != nil || elem != anyDepth && strings.Contains(elem, anyDepth) {
			return nil, invalid("files.deny: %q: %q is malformed", text, elem)
		}
		p.elems = append(p.elems, elem)
	}
	if len(p.elems) > maxElems {
		return nil, invalid("files.deny: %q has more than %d elements", text, maxElems)
	}
	return p, nil
}

// places is the set of elements of a pattern that come next, a bit for each; the
// bit after the last one says that the pattern was matched.
type places uint64

// begin is where a path begins.
func (p *pattern) begin() places { return p.open(1) }

// open adds the places behind those that may stand for nothing.
func (p *pattern) open(s places) places {
	for i, elem := range p.elems {
		if s&(1<<i) != 0 && elem == anyDepth {
			s |= 1 << (i + 1)
		}
	}
	return s
}

func (p *pattern) matched(s places) bool { return s&(1<<len(p.elems)) != 0 }

// step takes one element of a path.
func (p *pattern) step(s places, name string) places {
	var next places
	for left := uint64(s) &^ (1 << len(p.elems)); left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		if p.elems[i] == anyDepth {
			next |= 1 << i
		} else if ok, _ := path.Match(p.elems[i], name); ok {
			next |= 1 << (i + 1)
		}
	}
	return p.open(next)
}

// walk takes a whole path, absolute and clean. It reports whether it, or a folder
// that it lies in, is matched.
func (p *pattern) walk(name string) (s places, matched bool) {
	s = p.begin()
	if p.matched(s) {
		return s, true
	}
	for elem := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if elem == "" {
			continue
		}
		if s = p.step(s, elem); p.matched(s) {
			return s, true
		}
	}
	return s, false
}

// match reports whether a path, or a folder that it lies in, is matched.
func (p *pattern) match(name string) bool {
	_, ok := p.walk(name)
	return ok
}

// kept reports whether everything that is matched below the path from would still
// be matched if it were at to.
func (p *pattern) kept(from, to string) bool {
	a, _ := p.walk(from)
	b, all := p.walk(to)
	return all || a&^b == 0
}
