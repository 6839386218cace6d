// Package redact keeps secrets out of what is shown: of log lines, of errors,
// and of foreign answers that are quoted in either. It knows the secrets that
// were loaded in this process, see [Add], and the forms of others: headers, query
// keys, JSON keys, the user of a URL, and keys and tokens with a form of their own.
package redact

import (
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Mask stands where a secret was.
const Mask = "***"

const (
	minLength = 8   // of secrets that are looked for; shorter ones are in every text
	maxKnown  = 256 // secrets kept; the oldest are forgotten. A new one costs 10 µs for each
)

// known are the secrets of this process: whatever writes a line must know all of
// them, whoever loaded them.
var known struct {
	mu       sync.Mutex
	secrets  []string          // guarded by mu; oldest first
	replacer *strings.Replacer // guarded by mu; nil: to be made
}

// Add makes texts known as secrets, for the rest of the process. Those of less
// than 8 bytes, which are in every text, and those known already are left out; of
// more than 1024 the oldest are forgotten. It is safe for concurrent use.
func Add(secrets ...string) {
	known.mu.Lock()
	defer known.mu.Unlock()
	for _, s := range secrets {
		if len(s) < minLength || slices.Contains(known.secrets, s) {
			continue
		}
		if len(known.secrets) == maxKnown {
			known.secrets = slices.Delete(known.secrets, 0, 1)
		}
		known.secrets = append(known.secrets, s)
		known.replacer = nil
	}
}

// String returns text with "***" in place of secrets: of those that are known,
// as they are and as URLs, JSON, Go and base64 write them, and of what has the
// form of one. It is safe for concurrent use.
func String(text string) string {
	if text == "" {
		return ""
	}
	if r := replacer(); r != nil {
		text = r.Replace(text)
	}
	return patterns(text)
}

func replacer() *strings.Replacer {
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.replacer == nil && len(known.secrets) > 0 {
		known.replacer = newReplacer(known.secrets)
	}
	return known.replacer
}

// newReplacer prefers the longest form where several start at one place.
func newReplacer(secrets []string) *strings.Replacer {
	var all []string
	for _, s := range secrets {
		all = append(all, forms(s)...)
	}
	slices.SortFunc(all, func(a, b string) int {
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var pairs []string
	for _, form := range slices.Compact(all) {
		pairs = append(pairs, form, Mask)
	}
	return strings.NewReplacer(pairs...)
}

// Hint shows enough of a secret to tell it from another: the first 3 and the
// last 2 characters of one with at least 20, nothing of shorter ones.
func Hint(secret string) string {
	r := []rune(secret)
	if len(r) < 20 {
		return Mask
	}
	return string(r[:3]) + Mask + string(r[len(r)-2:])
}

// Header returns a copy of h in which the values of secret headers are "***",
// those of "also" included, and others are as [String] shows them.
func Header(h http.Header, also ...string) http.Header {
	if h == nil {
		return nil
	}
	out := make(http.Header, len(h))
	for name, values := range h {
		secret := isSecretHeader(name) || slices.ContainsFunc(also, func(a string) bool { return strings.EqualFold(a, name) })
		for _, v := range values {
			switch {
			case secret && strings.EqualFold(name, accessKeyHeader) && len(v) >= 20:
				v = Mask + v[len(v)-4:]
			case secret:
				v = Mask
			default:
				v = String(v)
			}
			out[name] = append(out[name], v)
		}
	}
	return out
}
