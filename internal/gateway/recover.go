package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// recoverLimit bounds how long the look at the sandboxes of the time before
// may take.
const recoverLimit = 60 * time.Second

// lookLimit bounds the look at one sandbox of several.
const lookLimit = 10 * time.Second

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
	for id := range living {
		if s.boxes[id] != nil {
			continue
		}
		if err := s.opts.Provider.Kill(ctx, id); err != nil && !isGone(err) {
			s.log.Warn("sandbox without a record not killed", "sandbox_id", id, "err", err)
		} else {
			s.log.Info("sandbox without a record killed", "sandbox_id", id)
		}
	}
	s.each(slices.Collect(maps.Values(s.boxes)), func(b *box) {
		s.recoverOne(ctx, b, living[b.id])
	})
	for _, b := range s.all() {
		s.arm(b)
	}
	return nil
}

// recoverOne takes up one sandbox; sb is nil when the provider did not list it.
// One that cannot be reached keeps nobody waiting: it is tried again later.
func (s *Server) recoverOne(ctx context.Context, b *box, sb *providers.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var err error
	if sb != nil {
		err = s.settle(ctx, b, sb)
	} else {
		err = s.lookHeld(ctx, b) // nobody else is there
	}
	switch {
	case isGone(err):
		s.forget(b, err)
	case err != nil || b.phase().between():
		s.log.Warn("sandbox of the time before not taken up; it is tried again", "sandbox_id", b.id, "err", err)
		b.mu.Lock()
		b.doubt = true
		b.mu.Unlock()
		s.retryLater(b)
	}
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
// off between them, or made by somebody else. The caller has the turn, and sb is
// of that time.
func (s *Server) settle(ctx context.Context, b *box, sb *providers.Sandbox) error {
	if agree(sb.State, b.phase()) {
		b.seen(sb)
		return nil
	}
	if sb.State == providers.StatePaused {
		end := time.Now().Add(keepPaused)
		if _, err := s.opts.Provider.SetLifetime(ctx, b.id, keepPaused); err != nil {
			return err
		}
		s.paused(b, end)
		return nil
	}
	b.seen(sb)
	rec := b.snapshot()
	if rec.Phase == phasePausing {
		s.unpause(ctx, b)
		return nil
	}
	// It went on. The end is the one it had or was to get, if that is to come.
	end := rec.RunEnd
	if time.Until(end) < minimumTimeout {
		end = time.Now().Add(min(defaultTimeoutV2, s.opts.MaxLifetime))
	}
	return s.resumed(ctx, b, end)
}
