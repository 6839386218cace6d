package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signalError is why the context of a command ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return fmt.Sprintf("stopped by a signal: %v", e.sig) }

// status is what shells report of programs that a signal ended.
func (e signalError) status() int { return 128 + int(e.sig) }

// signals turns the signals that ask for an end into the end of a context.
type signals struct {
	mu      sync.Mutex
	forward func(os.Signal) // guarded by mu; takes the next one instead
}

// watchSignals returns a context that ends with the first signal. The second one
// ends the process. SIGINT and SIGHUP do neither where who started it has them
// ignored.
func (a *app) watchSignals(ctx context.Context) (context.Context, func()) {
	a.signals = &signals{}
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 4)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) { // nohup, or a job of a script: it was started to outlive these
			signal.Notify(ch, sig)
		}
	}
	// Writes to a pipe that nobody reads fail then, and what is under way can be
	// ended in order.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case sig := <-ch:
				if f := a.signals.take(); f != nil {
					f(sig)
					continue
				}
				signal.Stop(ch)
				cancel(signalError{sig.(syscall.Signal)})
				return
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(ch)
		signal.Stop(pipe)
		close(done)
		wg.Wait()
		cancel(nil)
	}
}

// pass lets f have the next signal; nil: nobody. What comes after it ends the
// context as ever.
func (s *signals) pass(f func(os.Signal)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forward = f
}

func (s *signals) take() func(os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.forward
	s.forward = nil
	return f
}
