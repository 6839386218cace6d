package main

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// arguments checks how many there are; most < 0: any number. what names the
// first one that is missing.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage(cmd, "%s is missing", what)
		case most >= 0 && len(args) > most:
			return usage(cmd, "unexpected argument %q", args[most])
		}
		return nil
	}
}

// parsePairs reads KEY=VALUE words. With fromEnv, a word without "=" names a
// variable of this process, so that its value is in no list of processes.
func parsePairs(cmd *cobra.Command, flag string, words []string, fromEnv bool) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(words))
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok && fromEnv {
			if v, ok = os.LookupEnv(w); !ok {
				return nil, usage(cmd, "--%s %s: there is no such variable here; write %s=VALUE", flag, w, w)
			}
		}
		if !ok || k == "" {
			return nil, usage(cmd, "--%s wants KEY=VALUE", flag) // the word may hold a secret
		}
		out[k] = v
	}
	return out, nil
}

// envList is the form that commands take variables in.
func envList(env map[string]string) []string {
	var out []string
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	return out
}

// size is an option with a number of bytes: 512MiB, 2G.
type size struct{ bytes *sandboxfn.Bytes }

func (s size) String() string {
	if s.bytes == nil || *s.bytes == 0 {
		return ""
	}
	return s.bytes.String()
}

func (size) Type() string { return "size" }

// Set takes powers of 1024, as control groups and disks of sandboxes do.
func (s size) Set(text string) error {
	digits := strings.TrimRight(text, "BKMGTibkmgt")
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 || math.IsInf(n, 0) {
		return fmt.Errorf("%q is not a size, as 512MiB or 2GiB", text)
	}
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(text[len(digits):]), "b"), "i")
	shift, ok := map[string]int{"k": 10, "m": 20, "g": 30, "t": 40}[unit]
	if !ok {
		return fmt.Errorf("%q needs a unit, as 512MiB or 2GiB", text)
	}
	if n *= math.Pow(2, float64(shift)); n > math.MaxInt64/2 {
		return fmt.Errorf("%q is too large", text)
	}
	if 0 < n && n < float64(sandboxfn.MiB) {
		return fmt.Errorf("%q is less than 1MiB", text)
	}
	*s.bytes = sandboxfn.Bytes(n)
	return nil
}

// span is an option with a duration above zero.
type span struct{ d *time.Duration }

func (s span) String() string {
	if s.d == nil || *s.d == 0 {
		return ""
	}
	return s.d.String()
}

func (span) Type() string { return "duration" }

func (s span) Set(text string) error {
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return fmt.Errorf("a unit is missing: write %ds or %dm", n, n)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration, as 90s, 30m or 24h", text)
	}
	*s.d = d
	return nil
}

// parseVolume reads NAME:PATH, with :ro for one that is only read.
func parseVolume(cmd *cobra.Command, text string) (sandboxfn.Volume, error) {
	name, rest, ok := strings.Cut(text, ":")
	dir, mode, hasMode := strings.Cut(rest, ":")
	if !ok || name == "" || !path.IsAbs(dir) || hasMode && mode != "ro" && mode != "rw" {
		return sandboxfn.Volume{}, usage(cmd, "--volume %q is not NAME:/PATH or NAME:/PATH:ro", text)
	}
	return sandboxfn.Volume{Name: name, Path: dir, ReadOnly: mode == "ro"}, nil
}
