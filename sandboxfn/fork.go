package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	maxForks    = 1000
	forksAtOnce = 8 // creations under way
)

// ForkOptions say what forks are like.
type ForkOptions struct {
	// Create says what each fork is like but for its files. Provider, Template,
	// Image, RootDir, Snapshot and RequestID must not be set: they are those of the
	// sandbox. Nil: as the sandbox itself was created where this handle created it,
	// with a lifetime that begins anew; of one that was connected to, its metadata
	// and limits, and defaults for what the provider does not tell, as the
	// environment.
	Create *CreateOptions
}

// Fork makes n sandboxes that begin with the files of this one, which goes on.
// Processes are not taken along. All begin at the same moment of it, and what any
// of them writes afterwards is its own. A nil o means sandboxes like this one; o
// and what it points to are copied.
//
// There are n forks or none: when one cannot be made, or ctx ends first, the
// others are killed. Their handles are those of [Client.Create]: Close kills. The
// snapshot that they are made of is deleted before Fork returns.
//
// Errors: those of [Sandbox.Snapshot] and [Client.Create]; n out of 1 to 1000 is
// [ErrOption].
func (sb *Sandbox) Fork(ctx context.Context, n int, o *ForkOptions) ([]*Sandbox, error) {
	const op = "fork sandbox"
	if n < 1 || n > maxForks {
		return nil, errdefs.New("E2011", op, fmt.Sprintf("%d forks are out of range: 1 to %d", n, maxForks))
	}
	create, err := sb.forkOptions(ctx, op, o)
	if err != nil {
		return nil, err
	}
	s, err := sb.Snapshot(ctx, nil)
	if err != nil {
		return nil, err
	}
	create.Snapshot = s.ID
	forks, err := sb.client.createAll(ctx, n, create)
	// A snapshot that stays does no harm to the forks; the log tells.
	if kept := sb.client.dropSnapshot(ctx, sb.provider, s.ID); err != nil {
		err = errors.Join(err, kept)
	}
	return forks, err
}

// forkOptions are those of each fork, without its files. They are checked before
// anything happens.
func (sb *Sandbox) forkOptions(ctx context.Context, op string, o *ForkOptions) (CreateOptions, error) {
	var v CreateOptions
	switch {
	case o != nil && o.Create != nil:
		v = o.Create.clone()
		if v.Provider != "" || v.Template != "" || v.Image != "" || v.RootDir != "" || v.Snapshot != "" || v.RequestID != "" {
			return v, errdefs.New("E2011", op, "Create: Provider, Template, Image, RootDir, Snapshot and RequestID are those of the sandbox, and must not be set")
		}
	case sb.options != nil:
		v = sb.options.clone()
		v.Template, v.Image, v.RootDir, v.RequestID = "", "", "", ""
	default:
		i := infoOf(&sb.state)
		v = CreateOptions{Metadata: i.Metadata, CPU: i.CPU, Memory: i.Memory, Disk: i.Disk, Processes: i.Processes}
	}
	v.Provider, v.Snapshot = sb.Provider(), "?" // until there is one
	caps, err := sb.provider.Capabilities(ctx)
	if err != nil {
		return v, sb.client.providerError(ctx, op, err)
	}
	_, err = v.request(sb.client, caps, v.Provider)
	return v, err
}

// clone is a copy that shares nothing with o but the logger.
func (o *CreateOptions) clone() CreateOptions {
	var v CreateOptions
	if o != nil {
		v = *o
	}
	v.Env, v.Metadata = maps.Clone(v.Env), maps.Clone(v.Metadata)
	v.Expose, v.Volumes, v.Require = slices.Clone(v.Expose), slices.Clone(v.Volumes), slices.Clone(v.Require)
	return v
}

// createAll makes n sandboxes, or none.
func (c *Client) createAll(ctx context.Context, n int, o CreateOptions) ([]*Sandbox, error) {
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	made, failed := make([]*Sandbox, n), make([]error, n)
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	slots := make(chan struct{}, forksAtOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if made[i], failed[i] = c.Create(cctx, &o); failed[i] != nil {
				once.Do(func() { first = failed[i] })
				cancel() // the others are of no use
			}
		})
	}
	wg.Wait()
	if first == nil {
		return made, nil
	}
	errs := make([]error, n)
	for i, sb := range made {
		if sb != nil {
			wg.Go(func() { errs[i] = sb.Close() })
		}
	}
	wg.Wait()
	return nil, errors.Join(append([]error{first}, errs...)...)
}

// dropSnapshot deletes a snapshot that nobody else knows, even when ctx has ended.
func (c *Client) dropSnapshot(ctx context.Context, p providers.Provider, id string) error {
	return c.persist(ctx, func(ctx context.Context) error {
		err := c.deleteSnapshot(ctx, p, id)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			c.log.WarnContext(ctx, "snapshot not deleted", "snapshot_id", id, "err", err)
		}
		return err
	})
}
