package config

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	commandLimit  = 10 * time.Second
	commandOutput = 64 << 10 // bytes of each stream that are kept
)

// answers are the keys that commands gave, for the rest of the process: a
// command may ask a person, who is not asked twice.
var answers struct {
	mu sync.Mutex
	of map[string]*answer // guarded by mu; by the words of the command
}

type answer struct {
	mu  sync.Mutex
	key string // guarded by mu; empty: not yet
}

// runCommand gives what the command of an api_key_command writes. A failure is
// not remembered.
func runCommand(words []string, source string) (string, error) {
	id := strings.Join(words, "\x00")
	answers.mu.Lock()
	a := answers.of[id]
	if a == nil {
		if answers.of == nil {
			answers.of = map[string]*answer{}
		}
		a = &answer{}
		answers.of[id] = a
	}
	answers.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.key == "" {
		key, err := askCommand(words, source, commandLimit)
		if err != nil {
			return "", err
		}
		a.key = key
	}
	return a.key, nil
}

func askCommand(words []string, source string, limit time.Duration) (string, error) {
	fail := func(why string, cause error) error {
		return &errdefs.Error{Code: "E1001", Op: op, Err: cause,
			Message:    "api_key_command " + shown(words[0]) + " gave no key: " + redact.String(why) + " (" + source + ")",
			Suggestion: "run the command by hand; it must write the key to its standard output"}
	}
	if filepath.Base(words[0]) != words[0] && !filepath.IsAbs(words[0]) {
		return "", fail("it is a path that depends on the working directory; write the whole path", nil)
	}
	// Settings are read before there is a call with a context.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	wholeGroup(cmd)
	cmd.WaitDelay = time.Second // for what keeps its streams open
	var stdout, stderr tail
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well; what it has started for later keeps the streams
	}
	if last := lastLine(stderr.String()); err != nil && last != "" {
		redact.Add(strings.TrimSpace(stdout.String()))
		return "", fail("it ended with "+ended(ctx, err, limit)+"; last line: "+shown(redact.String(last)), nil)
	}
	if err != nil {
		return "", fail("it ended with "+ended(ctx, err, limit), nil)
	}
	key := strings.TrimSpace(stdout.String())
	redact.Add(key)
	s := find("api_key")
	switch {
	case key == "":
		return "", fail("it wrote nothing", nil)
	case stdout.cut:
		return "", fail("it wrote more than 64 KiB", nil)
	}
	if _, err := s.parse(key); err != nil {
		return "", fail(err.Error(), nil)
	}
	return key, nil
}

func ended(ctx context.Context, err error, limit time.Duration) string {
	if ctx.Err() != nil {
		return "no answer within " + limit.String()
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// tail keeps the end of what is written to it.
type tail struct {
	buf bytes.Buffer
	cut bool
}

func (t *tail) Write(b []byte) (int, error) {
	t.buf.Write(b)
	if over := t.buf.Len() - commandOutput; over > 0 {
		t.cut = true
		t.buf.Next(over)
	}
	return len(b), nil
}

func (t *tail) String() string { return t.buf.String() }
