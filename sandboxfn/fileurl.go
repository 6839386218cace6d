package sandboxfn

import (
	"context"
	"errors"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// runtimePort is the port by which addresses name the runtime of a sandbox.
const runtimePort = 49983

// FileURLOptions say what an address of a file is for. Nil means a download that
// never expires, as the sandbox's default user.
type FileURLOptions struct {
	// Write makes an address to upload to, by POST: the content itself as
	// application/octet-stream, or a form with one file. It cannot download.
	Write bool

	// User is whose file it is, and whose home a relative path means. Empty: the
	// default user.
	User string

	// Expires is how long the address works, rounded up to whole seconds. Zero:
	// as long as the sandbox lives. Negative is [ErrFile].
	Expires time.Duration
}

// FileURL returns an address by which anybody can download, or upload, one file
// of the sandbox by plain HTTP and without any header. It is signed with the
// sandbox's access token and works for that path, direction and user only. No
// request is made: the file need not exist.
//
// Paths mean what they mean for [FS]. A sandbox that is reached over a socket of
// this machine, as those of the local provider are, has no address:
// [ErrNotSupported]. One that asks for no token has addresses that everybody
// could make; they hold no signature, and with Expires they are [ErrNotSupported].
func (sb *Sandbox) FileURL(path string, o *FileURLOptions) (string, error) {
	const op = "sign file address"
	var opts FileURLOptions
	if o != nil {
		opts = *o
	}
	if opts.Expires < 0 {
		return "", errdefs.New("E4000", op, "Expires is negative: "+opts.Expires.String())
	}
	p, err := sb.FS(sb.life).path(op, path)
	if err != nil {
		return "", err
	}
	a := envd.FileAddress{Path: p, Write: opts.Write, User: opts.User}
	if opts.Expires > 0 {
		a.Expires = time.Now().Add(opts.Expires)
	}
	if a.Base, err = sb.fileBase(); err != nil {
		return "", err
	}
	return sb.envd.FileURL(a)
}

// fileBase is an address of the runtime that names the sandbox without headers.
// Empty: the one that requests go to has to do.
func (sb *Sandbox) fileBase() (string, error) {
	exposer, ok := sb.provider.(providers.PortExposer)
	if !ok || sb.envd.Dialed() {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(sb.life, 30*time.Second)
	defer cancel()
	ep, err := exposer.Port(ctx, sb.id, runtimePort)
	switch {
	case errors.Is(err, ErrNotSupported):
		return "", nil
	case err != nil:
		return "", sb.note(sb.client.providerError(ctx, "sign file address", err))
	case ep.Dial != nil:
		return "", nil
	}
	return ep.URL, nil
}
