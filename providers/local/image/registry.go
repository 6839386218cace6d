//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// findRemote asks a registry what a tag stands for. A digest says it by itself.
func findRemote(ctx context.Context, text string) (*local.FoundImage, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, malformed(text, err)
	}
	options := func(ctx context.Context) []remote.Option {
		return []remote.Option{
			remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform()),
			remote.WithTransport(careful{remote.DefaultTransport}), remote.WithUserAgent("sandbox-go/" + version.String()),
		}
	}
	digest, ok := ref.(name.Digest)
	if !ok {
		d, err := resolve(ref, options(ctx))
		if err != nil {
			return nil, remoteError("ask for "+ref.Name(), err)
		}
		digest = ref.Context().Digest(d)
	}
	if !strings.HasPrefix(digest.DigestStr(), "sha256:") {
		return nil, malformed(text, errors.New("its digest is not SHA-256"))
	}
	return &local.FoundImage{Digest: digest.DigestStr(), Load: func(ctx context.Context) (*local.Image, error) {
		d, err := remote.Get(digest, options(ctx)...)
		if err != nil {
			return nil, remoteError("fetch the manifest of "+ref.Name(), err)
		}
		var img v1.Image
		switch {
		case d.MediaType.IsIndex():
			idx, err := d.ImageIndex()
			if err != nil {
				return nil, broken("read the index of "+ref.Name(), err)
			}
			if img, err = pick(idx, 0); err != nil {
				return nil, remoteError("choose from "+ref.Name(), err)
			}
		case d.MediaType.IsImage():
			if img, err = d.Image(); err != nil {
				return nil, broken("read the manifest of "+ref.Name(), err)
			}
		default:
			return nil, broken(ref.Name()+" is no image but "+string(d.MediaType), nil)
		}
		m, err := manifest(img)
		if err != nil {
			return nil, err
		}
		return load(img, m)
	}}, nil
}

// resolve returns the digest that a tag stands for now.
func resolve(ref name.Reference, options []remote.Option) (string, error) {
	d, err := remote.Head(ref, options...)
	if err == nil {
		return d.Digest.String(), nil
	}
	var status *transport.Error
	if !errors.As(err, &status) {
		return "", err
	}
	// HEAD has no text that says why, and not every registry has HEAD.
	full, err := remote.Get(ref, options...)
	if err != nil {
		return "", err
	}
	return full.Digest.String(), nil
}

// remoteError turns a failure of a registry into a coded one.
func remoteError(what string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	e := &errdefs.Error{Code: "E5001", Op: op, Message: what, Err: err}
	var status *transport.Error
	var dns net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = "E5002"
	case errors.Is(err, context.Canceled):
		e.Code = "E5004"
	case errors.As(err, &status):
		switch status.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			e.Code, e.Suggestion = "E1001", "log in to the registry (docker login), and check the name: registries answer so for images that do not exist too"
		case http.StatusNotFound:
			return absent(what, err)
		case http.StatusTooManyRequests:
			e.Code = "E8010"
		default:
			e.Code = "E8011"
		}
	case !errors.As(err, &dns):
		e.Code = "E8006"
	}
	return e
}

// careful is a transport that keeps to HTTPS, except on the loopback, and lets
// no answer but a layer be larger than a manifest or configuration is.
type careful struct{ http.RoundTripper }

// RoundTrip makes the request if it may.
func (c careful) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !isLoopback(r.URL.Hostname()) {
		return nil, &errdefs.Error{Code: "E5001", Op: op,
			Message:    "the registry " + r.URL.Host + " answers without encryption only",
			Suggestion: "give it a certificate, or copy the image to an OCI layout and name that"}
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.Response == nil && !strings.Contains(r.URL.Path, "/blobs/") { // layers may be redirected elsewhere
		resp.Body = &boundedBody{resp.Body, maxManifest}
	}
	return resp, err
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// boundedBody fails when more comes than is expected.
type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read reads within the bound.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, fmt.Errorf("the registry's answer has more than %d bytes", maxManifest)
	}
	return n, err
}
