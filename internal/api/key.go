package api

import (
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// CheckKey returns key without blanks and newlines at its ends. A key that is
// in quotes, or that holds what no header can carry, is E1001; so is an empty
// one. The error never shows the key.
func CheckKey(key string) (string, error) {
	key = strings.TrimSpace(key)
	bad := func(what, hint string) error {
		return &errdefs.Error{Code: "E1001", Op: "read API key", Message: what, Suggestion: hint}
	}
	switch {
	case key == "":
		return "", bad("the API key is empty", "")
	case strings.ContainsAny(key[:1]+key[len(key)-1:], "\"'`"):
		return "", bad("the API key is in quotes", "remove the quotes: they became part of the key")
	}
	for _, r := range key {
		if r <= ' ' || r >= 0x7f {
			return "", bad("the API key holds a blank, a control character or a letter that is not ASCII", "copy the key again")
		}
	}
	return key, nil
}

// IsE2BKey reports whether a key has the form of E2B's: "e2b_" and lower-case
// hexadecimal digits.
func IsE2BKey(key string) bool {
	rest, ok := strings.CutPrefix(key, "e2b_")
	return ok && rest != "" && strings.Trim(rest, "0123456789abcdef") == ""
}

// Hint is what may be shown of a key: three and two characters of a long one.
func Hint(key string) string {
	if len(key) < 20 {
		return "***"
	}
	return key[:3] + "***" + key[len(key)-2:]
}
