//go:build linux

package code

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
)

// Prestart starts the interpreters of the default contexts that the template names,
// as the default user, and does not wait for them: a cell that comes earlier waits
// for the start that has begun. They are contexts like all others. One that does not
// start is logged only; the first cell tries again and has the error.
func (s *Service) Prestart() {
	for _, lang := range s.opts.Interpreter.Prestart {
		s.mu.Lock()
		if !s.closed {
			s.wg.Go(func() {
				if err := s.prestart(drivers.Canonical(lang)); err != nil && s.ctx.Err() == nil {
					s.opts.Logger.Warn("an interpreter that the template starts did not start", "language", lang, "err", err)
				}
			})
		}
		s.mu.Unlock()
	}
}

func (s *Service) prestart(lang string) error {
	u, err := s.opts.Users.Lookup("")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(account.NewContext(s.ctx, u))
	defer cancel()
	c, err := s.add(ctx, lang, "", true)
	if err != nil {
		return err
	}
	if err := s.acquire(ctx, c); err != nil {
		return err
	}
	defer c.release(s)
	_, _, err = s.engine(ctx, c)
	return err
}
