package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// recoverLimit bounds how long the look at the sandboxes of the time before
// may take.
const recoverLimit = 60 * time.Second

// recover takes up the sandboxes of the time before: those with a record that
// live go on, those that ended are forgotten, and those that carry our mark and
// have no record, left by a fall between creation and record, are killed: no
// client ever learned their ids.
func (s *Server) recover() error {
	ctx, cancel := context.WithTimeout(s.ctx, recoverLimit)
	defer cancel()
	records, err := s.store.load(func(name string, err error) {
		s.log.Warn("record of a sandbox cannot be read; its sandbox is killed", "record", name, "err", err)
	})
	if err != nil {
		return err
	}
	for _, r := range records {
		s.boxes[r.ID] = newBox(r)
	}
	living, err := s.marked(ctx)
	if err != nil {
		return err
	}
	for id, sb := range living {
		b := s.boxes[id]
		if b == nil {
			if err := s.opts.Provider.Kill(ctx, id); err != nil && !isGone(err) {
				s.log.Warn("sandbox without a record not killed", "sandbox_id", id, "err", err)
			} else {
				s.log.Info("sandbox without a record killed", "sandbox_id", id)
			}
			continue
		}
		if err := s.settle(ctx, b, sb); err != nil && !isGone(err) {
			return err
		}
	}
	for id, b := range s.boxes {
		if living[id] == nil {
			if err := s.look(ctx, b); err != nil && !isGone(err) {
				return err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		s.armLocked(b)
	}
	return nil
}

// marked lists the provider's sandboxes that carry our mark.
func (s *Server) marked(ctx context.Context) (map[string]*providers.Sandbox, error) {
	all := map[string]*providers.Sandbox{}
	req := providers.ListRequest{
		Metadata: map[string]string{markGateway: s.store.ident},
		States:   []providers.State{providers.StateStarting, providers.StateRunning, providers.StatePaused, providers.StateUnknown},
	}
	for {
		page, err := s.opts.Provider.List(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, sb := range page.Sandboxes {
			all[sb.ID] = sb
		}
		if page.Next == "" {
			return all, nil
		}
		if page.Next == req.Token {
			return nil, errors.New("the provider's list does not end")
		}
		req.Token = page.Next
	}
}

// settle brings a record and its sandbox together: a change may have been cut
// off between them.
func (s *Server) settle(ctx context.Context, b *box, sb *providers.Sandbox) error {
	b.seen(sb)
	rec := b.snapshot()
	paused := sb.State == providers.StatePaused
	switch {
	case paused && rec.Phase == phasePaused, !paused && rec.Phase == phaseRunning:
		return nil
	case paused:
		return s.update(b, func(r *record) { r.Phase, r.End = phasePaused, time.Now().Add(keepPaused).UTC() })
	}
	// It runs, and the record says that it does not, or nearly so.
	if rec.Phase == phasePaused || rec.Phase == phaseResuming {
		now := time.Now()
		if err := s.update(b, func(r *record) { r.Phase, r.Since, r.End = phaseRunning, now, now.Add(keepPaused) }); err != nil {
			return err
		}
		return s.moveEnd(ctx, b, min(defaultTimeoutV2, s.opts.MaxLifetime), either)
	}
	s.unpause(ctx, b)
	return nil
}
