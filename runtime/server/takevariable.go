//go:build linux

package server

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// takeVariable returns a variable of this process and removes it: from what Go
// knows, and from the memory that the kernel shows in /proc/PID/environ, where it
// would stay until the end of the process for everyone of the same user. It fails
// when the value can still be found there.
func takeVariable(name string) (string, error) {
	value := os.Getenv(name)
	if err := os.Unsetenv(name); err != nil {
		return "", errdefs.Wrap("E8007", "read "+name, "", err)
	}
	if value == "" {
		return "", nil
	}
	_ = overwrite([]byte(name + "=" + value)) // what counts is what is left
	left, err := os.ReadFile("/proc/self/environ")
	switch {
	case errors.Is(err, fs.ErrNotExist): // without /proc nobody can look
	case err != nil || bytes.Contains(left, []byte(name+"="+value)):
		return "", &errdefs.Error{
			Code: "E8007", Op: "read " + name, Message: "it cannot be removed from the environment of this process", Err: err,
			Suggestion: "put the token into a file and name that with --token-file",
		}
	}
	return value, nil
}

// overwrite fills an entry of our environment with zero bytes.
func overwrite(entry []byte) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// proc_pid_stat(5): fields 50 and 51 are env_start and env_end; the second
	// field, in parentheses, can hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 49 {
		return errors.New("/proc/self/stat is short")
	}
	begin, err1 := strconv.ParseInt(fields[47], 10, 64)
	end, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	const most = 8 << 20 // above what execve(2) takes
	if begin <= 0 || end < begin || end-begin > most {
		return errors.New("/proc/self/stat does not tell where the environment is")
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	env := make([]byte, end-begin)
	if _, err := mem.ReadAt(env, begin); err != nil {
		return err
	}
	for at := int64(0); at < int64(len(env)); {
		n := int64(bytes.IndexByte(env[at:], 0))
		if n < 0 {
			n = int64(len(env)) - at
		}
		if bytes.Equal(env[at:at+n], entry) {
			if _, err := mem.WriteAt(make([]byte, n), begin+at); err != nil {
				return err
			}
		}
		at += n + 1
	}
	return nil
}
