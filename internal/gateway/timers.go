package gateway

import (
	"context"
	"time"
)

// endSlack is how much later than the end of a sandbox's time the gateway looks
// whether the provider has ended it.
const endSlack = 50 * time.Millisecond

// armLocked sets the timer of a box to its end. The server's mutex is held.
func (s *Server) armLocked(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if s.closed || b.gone || b.rec.Standing || b.rec.Phase != phaseRunning && b.rec.Phase != phasePaused {
		return
	}
	d := time.Until(b.rec.End)
	if !b.rec.AutoPause || b.rec.Phase == phasePaused {
		d += endSlack
	}
	b.timer = time.AfterFunc(max(d, 0), func() { s.due(b) })
}

// due is called at the end of a box's time.
func (s *Server) due(b *box) {
	if !s.enter() {
		return
	}
	defer s.wg.Done()
	ctx, cancel := context.WithTimeout(s.ctx, changeLimit)
	defer cancel()
	if err := s.change(ctx, b, func(ctx context.Context) error { return s.atEnd(ctx, b) }); err != nil && !isGone(err) {
		s.log.Warn("the end of a sandbox's time was not dealt with; it is tried again", "sandbox_id", b.id, "err", err)
		s.later(b, 5*time.Second)
	}
}

// atEnd deals with the end, unless it has moved in the meantime.
func (s *Server) atEnd(ctx context.Context, b *box) error {
	rec := b.snapshot()
	if time.Until(rec.End) > 0 {
		s.later(b, 0)
		return nil
	}
	if rec.AutoPause && rec.Phase == phaseRunning {
		return s.pauseHeld(ctx, b, "paused at the end of its time")
	}
	sb, err := s.opts.Provider.Get(ctx, b.id)
	if err != nil {
		return err // gone, in the good case
	}
	if sb.ExpiresAt.After(time.Now()) && rec.Phase == phaseRunning { // the provider knows better
		return s.update(b, func(r *record) { r.End = sb.ExpiresAt.UTC() })
	}
	if err := s.opts.Provider.Kill(ctx, b.id); err != nil {
		return err
	}
	s.forget(b, nil)
	return nil
}

// later sets the timer anew, not before d has passed.
func (s *Server) later(b *box, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armLocked(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil && d > 0 {
		b.timer.Reset(max(d, time.Until(b.rec.End)))
	}
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
