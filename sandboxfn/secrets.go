package sandboxfn

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Secret is text that must not be shown. Whatever prints, logs or marshals it,
// at any depth, gets [redacted]; only [Secret.Reveal] gives the text. A Secret
// cannot be an argument or a result of a sandboxed function: name it in
// [Options.Secrets], and the function finds it in its environment. The zero value
// is the empty text.
type Secret struct{ text *string }

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

const redacted = "[redacted]"

// String returns "[redacted]".
func (Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (Secret) GoString() string { return redacted }

// Format writes "[redacted]", whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns "[redacted]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[redacted]" as JSON.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// GobEncode returns "[redacted]".
func (Secret) GobEncode() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns "[redacted]".
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// SecretSource says what secrets are. Methods are called from several goroutines.
type SecretSource interface {
	// Secret returns the secret called name. One that there is not is an error
	// that matches [ErrSecretNotFound]; other errors are shown as they are, so they
	// must not hold what was looked up. A source is asked when a function is first
	// called with given options, and at each start of a worker, so a new value
	// reaches the workers that are started after it.
	Secret(ctx context.Context, name string) (Secret, error)
}

// Environment is the [SecretSource] that looks in the environment of this
// process. A variable that is empty counts as not set.
type Environment struct{}

const hintSecret = "set it, or give the client a source (ClientOptions.Secrets)"

// Secret returns the value of the variable called name.
func (Environment) Secret(_ context.Context, name string) (Secret, error) {
	v := os.Getenv(name)
	if v == "" {
		return Secret{}, &Error{Code: "E9017", Op: "look up secret", Message: name + " is not set in the environment; " + hintSecret}
	}
	return NewSecret(v), nil
}

// guardedSecrets is the source of a client for functions that run at a provider.
// Where the project decides which sandboxes those are, it is not asked.
type guardedSecrets struct {
	c        *Client
	provider string
}

func (s guardedSecrets) Secret(ctx context.Context, name string) (Secret, error) {
	if err := s.c.cfg.CheckSecrets(s.provider); err != nil {
		return Secret{}, err
	}
	return s.c.opts.Secrets.Secret(ctx, name)
}

// resolveSecrets returns the values of the secrets of s, by the names of their
// variables. A function that runs in this process has the environment of this
// process, and gets none.
func (s *setup) resolveSecrets(ctx context.Context) (map[string]Secret, error) {
	if len(s.opts.Secrets) == 0 || s.inProcess {
		return nil, nil
	}
	values := make(map[string]Secret, len(s.opts.Secrets))
	for _, name := range slices.Sorted(maps.Keys(s.opts.Secrets)) {
		from := s.opts.Secrets[name]
		v, err := s.secrets.Secret(ctx, from)
		switch {
		case err == nil && strings.ContainsRune(v.Reveal(), 0):
			err = errors.New("its value holds a NUL byte, which no environment can")
			fallthrough
		case err != nil:
			code := errdefs.Code("E9000")
			if c := errdefs.CodeOf(err); c != "" {
				code = c
			}
			message, hint := "secret "+secretName(name, from), hintSecret
			if e, ok := err.(*Error); ok && e.Message != "" { // a message with its code is enough once
				message, err = message+": "+e.Message, e.Err
				if e.Suggestion != "" {
					hint = e.Suggestion
				}
			}
			return nil, &Error{Code: code, Op: s.name, Message: message, Err: err, Suggestion: hint}
		}
		values[name] = v
	}
	return values, nil
}

func secretName(name, from string) string {
	if name == from {
		return name
	}
	return name + " (" + from + " of the source)"
}

// hashKey makes hashes of secrets useless outside of this process.
var hashKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	rand.Read(key)
	return key
})

// hashSecrets stands for secrets in the key of a pool.
func hashSecrets(values map[string]Secret) string {
	if len(values) == 0 {
		return ""
	}
	h := hmac.New(sha256.New, hashKey())
	for _, name := range slices.Sorted(maps.Keys(values)) {
		for _, text := range []string{name, values[name].Reveal()} {
			binary.Write(h, binary.BigEndian, uint64(len(text)))
			io.WriteString(h, text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
