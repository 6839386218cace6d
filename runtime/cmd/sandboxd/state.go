package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// defaultStateDir is where all state of this machine lies.
func defaultStateDir() string {
	if d := os.Getenv("SANDBOX_STATE_DIR"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandbox")
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sandbox"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "" // refused by checkState
	}
	return filepath.Join(home, ".local", "state", "sandbox")
}

// gatewayDir is the gateway's part of the state directory.
func gatewayDir(state string) string { return filepath.Join(state, "gateway") }

// mayWrite asks whether files can be made in a directory.
const mayWrite = 0o3 // W_OK|X_OK

// checkState reports whether the gateway's part of a state directory is there,
// and refuses one that this user cannot use, in words that say who can.
func checkState(state string) (there bool, err error) {
	const op = "open state directory"
	if !filepath.IsAbs(state) {
		return false, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("%q is not an absolute path", state), Suggestion: "name one with --state-dir"}
	}
	dir := gatewayDir(state)
	// The nearest thing on the way there that can be seen.
	at := dir
	info, err := os.Stat(at)
	for err != nil && at != "/" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err != nil {
		return false, &errdefs.Error{Code: "E8007", Op: op, Message: at, Err: err}
	}
	if !info.IsDir() {
		return false, &errdefs.Error{Code: "E8007", Op: op, Message: at + " is no directory", Suggestion: "name another with --state-dir"}
	}
	there = at == dir
	uid := os.Geteuid()
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); there && owner != uid || syscall.Access(at, mayWrite) != nil {
		name := userName(owner)
		message := at + " belongs to " + name + ", and this is " + userName(uid)
		if owner == uid {
			message = at + " cannot be written"
		}
		hint := "run this as " + name + " (sudo -u " + name + "), or name another directory with --state-dir"
		if owner == uid || name == "root" && !there {
			hint = "name another directory with --state-dir"
		}
		return false, &errdefs.Error{Code: "E8007", Op: op, Message: message, Suggestion: hint}
	}
	return there, nil
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "user " + strconv.Itoa(uid)
}
