// Package fns holds functions that behave as badly as functions can, for the
// acceptance tests.
//
//sandbox:package timeout=1m memory=512MiB
package fns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

//go:generate go tool sandboxgen

// ErrOdd is the sentinel that functions of this package return.
var ErrOdd = errors.New("odd")

// initNoise is how many bytes the init function printed.
var initNoise int

func init() {
	if n, err := strconv.Atoi(os.Getenv("FNS_INIT_NOISE")); err == nil {
		initNoise = n
		os.Stdout.Write(bytes.Repeat([]byte{'i'}, n))
		fmt.Fprint(os.Stdout, "\x00\xff raw bytes in init\n")
	}
}

// echo returns what it is given.
//
//sandbox:func
func echo(data []byte) []byte { return data }

// add is the smallest function.
//
//sandbox:func
func add(a, b int) int { return a + b }

// checked returns ErrOdd, wrapped, for odd numbers.
//
//sandbox:func
func checked(n int) (int, error) {
	if n%2 != 0 {
		return 0, fmt.Errorf("check %d: %w", n, ErrOdd)
	}
	return n, nil
}

// noisy prints n bytes without a line end, on both outputs, then lets a child
// print as many.
//
//sandbox:func
func noisy(n int) (int, error) {
	os.Stdout.Write(bytes.Repeat([]byte{'o'}, n))
	os.Stderr.Write(bytes.Repeat([]byte{'e'}, n))
	child := exec.Command("/bin/sh", "-c", "head -c "+strconv.Itoa(n)+" /dev/zero")
	child.Stdout = os.Stdout
	if err := child.Run(); err != nil {
		return 0, err
	}
	return initNoise, nil
}

// sleep waits for d, or until the context ends unless it is stubborn, and then
// leaves a mark.
//
//sandbox:func grace=200ms
func sleep(ctx context.Context, d time.Duration, stubborn bool, mark string) (time.Duration, error) {
	start := time.Now()
	if stubborn {
		time.Sleep(d)
	} else {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return time.Since(start), context.Cause(ctx)
		}
	}
	if mark != "" {
		if err := os.WriteFile(mark, []byte("late"), 0o644); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// exit ends the worker.
//
//sandbox:func
func exit(code int) error {
	fmt.Fprintln(os.Stderr, "last words")
	os.Exit(code)
	return nil
}

// blowUp panics.
//
//sandbox:func
func blowUp(text string) (int, error) { panic(text) }

// kill ends the worker from outside: a child kills it.
//
//sandbox:func
func kill() (int, error) {
	err := exec.Command("/bin/sh", "-c", "kill -9 "+strconv.Itoa(os.Getpid())).Run()
	time.Sleep(10 * time.Second)
	return 0, err
}

// hog takes memory until it is stopped or has had enough.
//
//sandbox:func
func hog(mib int) (int, error) {
	var kept [][]byte
	for range mib {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		kept = append(kept, block)
	}
	return len(kept), nil
}

// daemon leaves a process behind that has a session of its own.
//
//sandbox:func
func daemon() (int, error) {
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, cmd.Process.Release()
}

// pid tells which worker answers.
//
//sandbox:func
func pid() (int, string) {
	host, _ := os.Hostname()
	return os.Getpid(), host
}

// appendLine appends to a file; it is not idempotent.
//
//sandbox:func
func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// lookEnv returns the whole environment.
//
//sandbox:func env=FROM_DIRECTIVE=yes
func lookEnv() []string { return os.Environ() }

// work takes a moment, and fails for some n.
//
//sandbox:func
func work(n int) (int, error) {
	time.Sleep(200 * time.Microsecond)
	if n%100 == 37 {
		return 0, fmt.Errorf("work %d: %w", n, ErrOdd)
	}
	return 3 * n, nil
}
