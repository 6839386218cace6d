package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	var body api.Pause
	if err := decode(w, r, &body, optional); err != nil {
		return err
	}
	if body.Memory != nil && !*body.Memory {
		return refuse(http.StatusBadRequest, "E8004", "memory: false is not supported by this gateway: memory is always kept")
	}
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	err = s.tryChange(r.Context(), b, func(ctx context.Context) error {
		if b.phase() == phasePaused {
			return refuse(http.StatusConflict, "E2024", "sandbox %q is paused already", b.id)
		}
		return s.pauseHeld(ctx, b, "paused")
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// pauseHeld pauses a running sandbox. The provider's end is moved first: it
// must not come while the sandbox is paused. The record on disk says "pausing"
// in between and keeps the old end, to which a restart goes back.
func (s *Server) pauseHeld(ctx context.Context, b *box, message string) error {
	p, ok := s.opts.Provider.(providers.Pauser)
	if !ok {
		return notSupported("pausing is")
	}
	before := b.phase()
	if err := s.update(b, func(r *record) { r.Phase = phasePausing }); err != nil {
		b.setPhase(before) // the one on disk says so, too
		return err
	}
	end := time.Now().Add(keepPaused)
	_, err := s.opts.Provider.SetLifetime(ctx, b.id, keepPaused)
	if err == nil {
		err = p.Pause(ctx, b.id)
	}
	if err != nil && errdefs.CodeOf(err) != "E2024" {
		if !isGone(err) {
			s.unpause(ctx, b)
		}
		return err
	}
	s.paused(b, end)
	s.note(b, "info", message)
	s.log.InfoContext(ctx, "sandbox paused", "sandbox_id", b.id)
	return nil
}

// paused makes the record say that a sandbox is paused, until end. Only now
// what is connected to it is cut: a pause that fails disturbs nobody. When the
// record cannot be written, the one on disk makes a restart look.
func (s *Server) paused(b *box, end time.Time) {
	b.calm()
	err := s.update(b, func(r *record) {
		if r.RunEnd.IsZero() {
			r.RunEnd = r.End
		}
		r.Phase, r.End = phasePaused, end.UTC()
	})
	if err != nil {
		s.log.Warn("record of a sandbox not written", "sandbox_id", b.id, "err", err)
	}
	b.cutAll(errPausedNow)
}

// unpause goes back to running after a pause that failed, with the end of
// before. When the provider does not take that now, the gateway's own clock
// ends it.
func (s *Server) unpause(ctx context.Context, b *box) {
	_, err := s.endAt(ctx, b, b.snapshot().End)
	if e := s.update(b, func(r *record) { r.Phase, r.RunEnd = phaseRunning, time.Time{} }); err == nil {
		err = e
	}
	if err != nil {
		s.log.WarnContext(ctx, "a pause that failed was not undone entirely", "sandbox_id", b.id, "err", err)
	}
}

func (s *Server) resume(w http.ResponseWriter, r *http.Request) error {
	var body api.Resume
	if err := decode(w, r, &body, optional); err != nil {
		return err
	}
	if body.Memory != nil && !*body.Memory {
		return refuse(http.StatusBadRequest, "E8004", "memory: false is not supported by this gateway: memory is always kept")
	}
	d := defaultTimeoutV1
	if body.Timeout != nil {
		var err error
		if d, err = s.timeout(*body.Timeout, 0); err != nil {
			return err
		}
	}
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	err = s.tryChange(r.Context(), b, func(ctx context.Context) error {
		switch p := b.phase(); {
		case p.between():
			return inTransition(b)
		case p != phasePaused:
			return refuse(http.StatusConflict, "", "sandbox %q is running already", b.id)
		}
		if body.AutoPause != nil {
			b.mu.Lock()
			b.rec.AutoPause = *body.AutoPause
			b.mu.Unlock()
		}
		return s.resumeHeld(ctx, b, max(d, minimumTimeout))
	})
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, s.asSandbox(b))
	return nil
}

// resumeHeld lets a paused sandbox go on, to end d from now.
func (s *Server) resumeHeld(ctx context.Context, b *box, d time.Duration) error {
	p, ok := s.opts.Provider.(providers.Pauser)
	if !ok {
		return notSupported("resuming is")
	}
	before := b.snapshot()
	end := time.Now().Add(min(d, s.opts.MaxLifetime)).UTC()
	if err := s.update(b, func(r *record) { r.Phase, r.RunEnd = phaseResuming, end }); err != nil {
		b.mu.Lock()
		b.rec.RunEnd = before.RunEnd
		b.mu.Unlock()
		b.setPhase(phasePaused)
		return err
	}
	sb, err := p.Resume(ctx, b.id, providers.ConnectRequest{})
	if err != nil {
		if !isGone(err) {
			if e := s.update(b, func(r *record) { r.Phase, r.RunEnd = phasePaused, before.RunEnd }); e != nil {
				s.log.WarnContext(ctx, "record of a sandbox not written", "sandbox_id", b.id, "err", e)
			}
		}
		return err
	}
	b.seen(sb)
	if err := s.resumed(ctx, b, time.Now().Add(min(d, s.opts.MaxLifetime))); err != nil {
		return err // and it is tried again
	}
	s.note(b, "info", "resumed")
	s.log.InfoContext(ctx, "sandbox resumed", "sandbox_id", b.id)
	return nil
}

// resumed gives a sandbox that runs again its end, and makes the record say so.
// When that cannot be written, the one on disk makes a restart look.
func (s *Server) resumed(ctx context.Context, b *box, end time.Time) error {
	now := time.Now()
	end, err := s.endAt(ctx, b, end)
	if err != nil {
		return err
	}
	b.calm()
	err = s.update(b, func(r *record) {
		r.Phase, r.Since, r.End, r.RunEnd = phaseRunning, now, end, time.Time{}
	})
	if err != nil {
		s.log.WarnContext(ctx, "record of a sandbox not written", "sandbox_id", b.id, "err", err)
	}
	return nil
}
