//go:build !linux

package sandboxfn

import (
	"context"
	"errors"
	"log/slog"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

func processPools(m *worker.Mode) *poolSet {
	return m.Keep(func() (any, func(context.Context) error) {
		ps := newPools(processMaker{}, slog.New(slog.DiscardHandler))
		return ps, ps.close
	}).(*poolSet)
}

type processMaker struct{}

func (processMaker) start(context.Context, *setup, func([]byte), func([]byte)) (*made, error) {
	return nil, &stepError{"start", errors.New("worker processes need Linux")}
}
