package drivers

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// stream makes text of what comes out of a pipe: it takes the marker out that
// ends the output of a cell, and does not cut characters in two.
type stream struct {
	marker  []byte // that is waited for; nil: none
	pending []byte // may be the beginning of a character or of the marker
}

// feed adds what was read and returns the text that is complete. ended reports
// that the marker was in it; what followed is pending then.
func (s *stream) feed(p []byte) (text string, ended bool) {
	s.pending = append(s.pending, p...)
	if len(s.marker) > 0 {
		if at := bytes.Index(s.pending, s.marker); at >= 0 {
			text = valid(s.pending[:at])
			s.pending = append([]byte(nil), s.pending[at+len(s.marker):]...)
			s.marker = nil
			return text, true
		}
	}
	keep := max(partialMarker(s.pending, s.marker), partialRune(s.pending))
	n := len(s.pending) - keep
	text = valid(s.pending[:n])
	s.pending = append(s.pending[:0], s.pending[n:]...)
	return text, false
}

// flush returns what is left, complete or not.
func (s *stream) flush() string {
	text := valid(s.pending)
	s.pending = nil
	return text
}

// partialMarker is how many bytes at the end of p begin the marker.
func partialMarker(p, marker []byte) int {
	for n := min(len(p), len(marker)-1); n > 0; n-- {
		if bytes.HasSuffix(p, marker[:n]) {
			return n
		}
	}
	return 0
}

// partialRune is how many bytes at the end of p begin a character.
func partialRune(p []byte) int {
	for n := 1; n <= min(len(p), utf8.UTFMax-1); n++ {
		if c := p[len(p)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			break
		}
	}
	return 0
}

// valid is p as text; each byte that is none is U+FFFD.
func valid(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	var b strings.Builder
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		b.WriteRune(r)
		p = p[n:]
	}
	return b.String()
}

// head is at most the first n bytes of text, without half a character.
func head(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// tail is at most the last n bytes.
func tail(text string, n int) string {
	if len(text) <= n {
		return text
	}
	at := len(text) - n
	for at < len(text) && !utf8.RuneStart(text[at]) {
		at++
	}
	return text[at:]
}
