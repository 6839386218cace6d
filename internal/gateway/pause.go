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
	if err := s.update(b, func(r *record) { r.Phase = phasePausing }); err != nil {
		return err
	}
	b.cutAll(errPausedNow)
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
	if err := s.update(b, func(r *record) {
		r.Phase, r.End = phasePaused, end.UTC()
	}); err != nil {
		return err
	}
	s.note(b, "info", message)
	s.log.InfoContext(ctx, "sandbox paused", "sandbox_id", b.id)
	return nil
}

// unpause goes back to running after a pause that failed.
func (s *Server) unpause(ctx context.Context, b *box) {
	rec := b.snapshot()
	left := max(time.Until(rec.End), minimumTimeout)
	if rec.AutoPause {
		left += keepPaused
	}
	_, err := s.opts.Provider.SetLifetime(ctx, b.id, left)
	if err == nil {
		err = s.update(b, func(r *record) { r.Phase = phaseRunning })
	}
	if err != nil {
		s.log.WarnContext(ctx, "sandbox not back to running", "sandbox_id", b.id, "err", err)
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
		if b.phase() != phasePaused {
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
	if err := s.update(b, func(r *record) { r.Phase = phaseResuming }); err != nil {
		return err
	}
	sb, err := p.Resume(ctx, b.id, providers.ConnectRequest{})
	if err != nil {
		if !isGone(err) {
			if e := s.update(b, func(r *record) { r.Phase = phasePaused }); e != nil {
				s.log.WarnContext(ctx, "record of a sandbox not written", "sandbox_id", b.id, "err", e)
			}
		}
		return err
	}
	b.seen(sb)
	now := time.Now()
	if err := s.update(b, func(r *record) { r.Phase, r.Since, r.End = phaseRunning, now, now.Add(keepPaused) }); err != nil {
		return err
	}
	if err := s.moveEnd(ctx, b, d, either); err != nil { // the end was that of a paused one
		return err
	}
	s.note(b, "info", "resumed")
	s.log.InfoContext(ctx, "sandbox resumed", "sandbox_id", b.id)
	return nil
}
