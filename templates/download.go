package templates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// errNotModified says that what the cache has is still right.
var errNotModified = errors.New("not modified")

// get asks for an address; with etag only for something else. Credentials in the
// address are sent to its host only.
func get(ctx context.Context, client *http.Client, url, etag string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, errdefs.Wrap("E2005", "fetch template", "the address is malformed", nil)
	}
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	c := *client
	c.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		switch {
		case len(via) > 5:
			return errors.New("more than 5 redirects")
		case next.URL.Scheme != "https" && !isLoopback(next.URL.Hostname()):
			return errors.New("redirected to an address without encryption")
		case !isLoopback(via[0].URL.Hostname()) && isLoopback(next.URL.Hostname()):
			return errors.New("redirected to this machine")
		}
		return nil
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, networkError(ctx, redactURL(url), err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusNotModified:
		resp.Body.Close()
		return nil, errNotModified
	}
	resp.Body.Close()
	what := fmt.Sprintf("%s answers %s", redactURL(url), resp.Status)
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		return nil, errdefs.New("E2001", "fetch template", what)
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, &errdefs.Error{Code: "E2005", Op: "fetch template", Message: what, Suggestion: "it asks for credentials, or limits the rate of requests"}
	}
	return nil, errdefs.New("E2005", "fetch template", what)
}

// networkError is a failure on the way.
func networkError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errdefs.Wrap("E2005", "fetch template", what, errors.New(strings.ReplaceAll(err.Error(), "\n", " ")))
}

// unpack writes what an archive holds below root, without its top folder when that
// is the only thing on its top.
func unpack(r io.Reader, root *os.Root) (links []string, err error) {
	links, err = extract(root, r)
	if err != nil {
		return nil, err
	}
	top, err := readDir(root, ".")
	if err != nil || len(top) != 1 || !top[0].IsDir() {
		return links, err
	}
	return stripTop(root, top[0].Name(), links)
}

func readDir(root *os.Root, name string) ([]os.DirEntry, error) {
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

// stripTop moves what is in the only folder of root up.
func stripTop(root *os.Root, top string, links []string) ([]string, error) {
	// What is in it may have its name.
	const aside = ".top"
	if err := root.Rename(top, aside); err != nil {
		return nil, err
	}
	inner, err := readDir(root, aside)
	if err != nil {
		return nil, err
	}
	for _, e := range inner {
		if e.Name() == aside {
			return nil, hostile("it holds %s", path.Join(top, aside))
		}
		if err := root.Rename(path.Join(aside, e.Name()), e.Name()); err != nil {
			return nil, err
		}
	}
	for i, l := range links {
		links[i] = strings.TrimPrefix(l, top+"/")
	}
	return links, root.Remove(aside)
}

// archiveFrom stores an archive that r gives.
func (c *Cache) archiveFrom(e Entry, r io.Reader) (Entry, error) {
	return c.store(e, func(root *os.Root) ([]string, error) {
		links, err := unpack(r, root)
		if err != nil {
			return nil, errdefs.Wrap("E2006", "fetch template", e.Ref, err)
		}
		return links, nil
	})
}

// download brings an archive of an address into the cache.
func (c *Cache) download(ctx context.Context, client *http.Client, url string, old Entry) (Entry, error) {
	resp, err := get(ctx, client, url, old.ETag)
	if errors.Is(err, errNotModified) {
		old.Checked = time.Now().UTC()
		return old, c.record(old)
	}
	if err != nil {
		return Entry{}, err
	}
	defer resp.Body.Close()
	return c.archiveFrom(Entry{Ref: redactURL(url), ETag: resp.Header.Get("ETag")}, resp.Body)
}

// file brings an archive of this machine into the cache. Its digest decides whether
// it is there already.
func (c *Cache) file(name string) (Entry, error) {
	f, err := os.Open(name)
	if err != nil {
		return Entry{}, errdefs.Wrap("E2001", "resolve template", "archive "+name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Entry{}, errdefs.Wrap("E2001", "resolve template", "archive "+name+" is not a file", err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxArchive+1)); err != nil {
		return Entry{}, errdefs.Wrap("E2005", "resolve template", "archive "+name, err)
	}
	rev := "sha256:" + hex.EncodeToString(h.Sum(nil))
	if old, ok := c.find(name); ok && old.Rev == rev {
		if _, err := c.open(old); err == nil {
			return old, nil
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Entry{}, errdefs.Wrap("E2005", "resolve template", "archive "+name, err)
	}
	return c.archiveFrom(Entry{Ref: name, Rev: rev}, f)
}

// artifact brings an artifact of a registry into the cache: its layers, one over the
// other. Credentials are those of docker login.
func (c *Cache) artifact(ctx context.Context, image string, rt http.RoundTripper, old Entry) (Entry, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return Entry{}, errdefs.Wrap("E2001", "fetch template", "oci://"+image, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if rt != nil {
		options = append(options, remote.WithTransport(rt))
	}
	desc, err := remote.Get(ref, options...)
	if err != nil {
		return Entry{}, registryError(ctx, image, err)
	}
	e := Entry{Ref: "oci://" + image, Rev: desc.Digest.String()}
	_, e.Immutable = ref.(name.Digest)
	if old.Rev == e.Rev {
		if _, err := c.open(old); err == nil {
			old.Checked = time.Now().UTC()
			return old, c.record(old)
		}
	}
	img, err := desc.Image()
	if err != nil {
		return Entry{}, registryError(ctx, image, err)
	}
	layers, err := img.Layers()
	if err != nil {
		return Entry{}, registryError(ctx, image, err)
	}
	if len(layers) != 1 {
		return Entry{}, errdefs.New("E2006", "fetch template", fmt.Sprintf("oci://%s has %d layers; a template is an archive in one", image, len(layers)))
	}
	return c.store(e, func(root *os.Root) ([]string, error) {
		r, err := layers[0].Compressed() // checks the digest as it reads
		if err != nil {
			return nil, registryError(ctx, image, err)
		}
		defer r.Close()
		links, err := extract(root, r)
		if err == nil {
			_, err = io.Copy(io.Discard, &counted{r, maxArchive}) // to the end, where the digest is compared
		}
		if err != nil {
			return nil, errdefs.Wrap("E2006", "fetch template", "oci://"+image, err)
		}
		return links, nil
	})
}

func registryError(ctx context.Context, image string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch e.StatusCode {
		case http.StatusNotFound:
			return errdefs.Wrap("E2001", "fetch template", "oci://"+image+" is not there", err)
		case http.StatusUnauthorized, http.StatusForbidden:
			return &errdefs.Error{Code: "E2005", Op: "fetch template", Message: "oci://" + image, Suggestion: "log in with docker login", Err: err}
		}
	}
	return errdefs.Wrap("E2005", "fetch template", "oci://"+image, err)
}
