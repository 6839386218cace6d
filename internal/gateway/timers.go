package gateway

import (
	"context"
	"time"
)

// endSlack is how much later than the end of a sandbox's time the gateway looks
// whether the provider has ended it.
const endSlack = 50 * time.Millisecond

// The pause between two tries to deal with one sandbox grows up to a limit.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// arm sets the timer of a box.
func (s *Server) arm(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armLocked(b)
}

// armLocked sets the timer of a box to its end, but not to before the next try
// after something failed. While a change is under way there is none, until it
// is given up. The server's mutex is held.
func (s *Server) armLocked(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if s.closed || b.gone || b.rec.Standing {
		return
	}
	at := b.rec.End
	if !b.rec.AutoPause || b.rec.Phase == phasePaused {
		at = at.Add(endSlack)
	}
	switch {
	case b.rec.Phase.between() && time.Until(b.retryAt) <= 0:
		return
	case b.rec.Phase.between() || b.doubt || b.retryAt.After(at):
		at = b.retryAt
	}
	b.timer = time.AfterFunc(max(time.Until(at), 0), func() { s.due(b) })
}

// retryLater counts a failure and lets the timer try again, later each time.
func (s *Server) retryLater(b *box) {
	b.mu.Lock()
	if time.Until(b.retryAt) <= 0 { // not counted yet
		b.retryAt = time.Now().Add(min(firstRetry<<min(b.tries, 10), lastRetry))
		b.tries++
	}
	b.mu.Unlock()
	s.arm(b)
}

// calm forgets failures.
func (b *box) calm() {
	b.mu.Lock()
	b.retryAt, b.tries, b.doubt = time.Time{}, 0, false
	b.mu.Unlock()
}

// due is called at the end of a box's time, and to try again.
func (s *Server) due(b *box) {
	if !s.enter() {
		return
	}
	defer s.wg.Done()
	ctx, cancel := context.WithTimeout(s.ctx, changeLimit)
	defer cancel()
	err := s.change(ctx, b, func(ctx context.Context) error {
		err := s.atEnd(ctx, b)
		if err != nil && !isGone(err) {
			s.retryLater(b) // in our turn: whoever waits for it sees that
		}
		return err
	})
	if err != nil && !isGone(err) {
		s.log.Warn("the end of a sandbox's time was not dealt with; it is tried again", "sandbox_id", b.id, "err", err)
		s.retryLater(b)
	}
}

// atEnd deals with the end, unless it has moved in the meantime, or is to be
// tried later.
func (s *Server) atEnd(ctx context.Context, b *box) error {
	b.mu.Lock()
	early, doubt := time.Until(b.retryAt) > 0, b.doubt
	b.mu.Unlock()
	if early {
		s.arm(b)
		return nil
	}
	if doubt {
		if err := s.lookHeld(ctx, b); err != nil {
			return err
		}
		b.calm()
	}
	rec := b.snapshot()
	if rec.Phase.between() {
		return inTransition(b)
	}
	if time.Until(rec.End) > 0 {
		s.arm(b)
		return nil
	}
	if rec.AutoPause && rec.Phase == phaseRunning {
		return s.pauseHeld(ctx, b, "paused at the end of its time")
	}
	sb, err := s.opts.Provider.Get(ctx, b.id)
	if err != nil {
		return err // gone, in the good case
	}
	// The provider may know better, after an extension whose record was lost;
	// but an end that none could ask for is left from a pause.
	last := rec.Since.Add(s.opts.MaxLifetime + minimumTimeout)
	if rec.Phase == phaseRunning && sb.ExpiresAt.After(time.Now()) && !sb.ExpiresAt.After(last) {
		return s.update(b, func(r *record) { r.End = sb.ExpiresAt.UTC() })
	}
	if err := s.opts.Provider.Kill(ctx, b.id); err != nil {
		return err
	}
	s.forget(b, nil)
	return nil
}

// note adds a life-cycle record and keeps it.
func (s *Server) note(b *box, level, message string) {
	b.mu.Lock()
	b.noteLocked(level, message)
	b.mu.Unlock()
	rec := b.snapshot()
	if err := s.store.save(&rec); err != nil {
		s.log.Warn("record of a sandbox not written", "sandbox_id", b.id, "err", err)
	}
}
