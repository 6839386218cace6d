package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// streamedUploads is the version of envd from which on it takes files as they
	// are, and compressed. Those before know forms alone.
	streamedUploads = "0.5.7"

	uploadTries    = 3        // for each request
	uploadOverhead = 16 << 10 // bytes of a request beside what it carries
)

// ensureArtifact returns the path of the program inside the sandbox, executable
// by user; empty is the default user. It is uploaded when the sandbox does not
// hold it yet, and checked after that.
//
// It lies where only the user that files belong to can write: in that user's
// home, or, where another is to run it, in a directory that nobody could know.
func (sb *Sandbox) ensureArtifact(ctx context.Context, a artifact.Self, user string) (string, error) {
	if err := sb.usable(); err != nil {
		return "", err
	}
	if p := sb.state.Artifacts[a.Digest]; p != "" {
		return p, nil
	}
	path := ".cache/sandbox-worker/" + a.Digest
	if user != "" && user != sb.state.DefaultUser {
		path = "/tmp/sandbox-worker-" + randomID() + "/" + a.Digest
	} else if there, err := sb.findArtifact(ctx, path, a); there != "" || err != nil {
		return there, err
	}
	f, err := a.Open()
	if err != nil {
		return "", errdefs.Wrap("E9010", "send program", "cannot read the program's own file", err)
	}
	defer f.Close()
	part := path + "." + randomID()[:8]
	there, err := sb.putArtifact(ctx, f, a, part)
	if err == nil {
		err = sb.envd.Move(ctx, part, path)
	}
	if err != nil {
		return "", errors.Join(sb.explain(ctx, err), sb.envd.Remove(context.WithoutCancel(ctx), part))
	}
	return strings.TrimSuffix(there, part[strings.LastIndexByte(part, '/')+1:]) + a.Digest, nil
}

// findArtifact looks for the program where an earlier upload has put it. One
// whose content cannot be checked does not count.
func (sb *Sandbox) findArtifact(ctx context.Context, path string, a artifact.Self) (string, error) {
	e, err := sb.envd.Stat(ctx, path)
	switch {
	case errors.Is(err, ErrPathNotFound):
		return "", nil
	case err != nil:
		return "", sb.explain(ctx, err)
	case e.Size != a.Size || !e.Mode.IsRegular() || e.Mode&0o100 == 0:
		return "", nil
	}
	switch same, err := sb.hasDigest(ctx, e.Path, a.Digest); {
	case err == nil && same:
		return e.Path, nil
	case err == nil || errors.Is(err, ErrCommandNotFound):
		return "", nil
	default:
		return "", sb.explain(ctx, err)
	}
}

// putArtifact uploads the program to path, checks it and makes it executable. It
// returns the absolute path.
func (sb *Sandbox) putArtifact(ctx context.Context, f *os.File, a artifact.Self, path string) (string, error) {
	if err := sb.upload(ctx, f, a.Size, path); err != nil {
		return "", err
	}
	e, err := sb.envd.Stat(ctx, path)
	switch {
	case err != nil:
		return "", err
	case e.Size != a.Size:
		return "", errdefs.New("E9010", "send program", fmt.Sprintf("%d bytes arrived of %d", e.Size, a.Size))
	}
	switch same, err := sb.hasDigest(ctx, e.Path, a.Digest); {
	case errors.Is(err, ErrCommandNotFound): // the lengths agree; no more can be known
	case err != nil:
		return "", err
	case !same:
		return "", errdefs.New("E9010", "send program", "what arrived in the sandbox is not what was sent")
	}
	return e.Path, sb.tool(ctx, "chmod", "0755", "--", e.Path)
}

// hasDigest compares the content of a file inside with digest. Without a tool
// for it inside it is ErrCommandNotFound.
func (sb *Sandbox) hasDigest(ctx context.Context, path, digest string) (bool, error) {
	out, err := sb.Command(ctx, "sha256sum", path).Output()
	if err != nil {
		return false, err
	}
	got, _, _ := strings.Cut(strings.TrimPrefix(string(out), `\`), " ")
	return got == digest, nil
}

// upload writes size bytes of r to path: in one request, or in parts where
// requests are limited. A request that fails on the way is made again.
func (sb *Sandbox) upload(ctx context.Context, r io.ReaderAt, size int64, path string) error {
	most := sb.limits.RequestBytes
	if most > 0 {
		most = max(most-uploadOverhead, most/2, 1)
	}
	if most == 0 || size <= most {
		return sb.uploadPart(ctx, io.NewSectionReader(r, 0, size), path)
	}
	var parts []string
	defer func() {
		for _, p := range parts { // those that are left
			sb.envd.Remove(context.WithoutCancel(ctx), p)
		}
	}()
	for at := int64(0); at < size; at += most {
		part := path + "." + strconv.Itoa(len(parts))
		parts = append(parts, part)
		if err := sb.uploadPart(ctx, io.NewSectionReader(r, at, min(most, size-at)), part); err != nil {
			return err
		}
	}
	err := sb.envd.Compose(ctx, parts, path)
	if err == nil {
		parts = nil
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	const join = `out=$1; shift; exec cat -- "$@" >"$out"`
	if joined := sb.tool(ctx, "/bin/sh", append([]string{"-c", join, "sh", path}, parts...)...); joined != nil {
		return errors.Join(err, joined)
	}
	return nil
}

// uploadPart makes one request, and again when it fails on the way.
func (sb *Sandbox) uploadPart(ctx context.Context, r *io.SectionReader, path string) error {
	for try := 1; ; try++ {
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		err := sb.uploadOnce(ctx, r, path)
		if err == nil || try == uploadTries || ctx.Err() != nil {
			return err
		}
		switch errdefs.CodeOf(err) {
		case "E5001", "E5002", "E5003":
		default:
			return err
		}
		if gone := sb.explain(ctx, err); gone != err {
			return gone
		}
		sb.log.DebugContext(ctx, "upload tried again", "err", err)
		t := time.NewTimer(time.Duration(try) * 200 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return contextError(ctx, "write file")
		}
	}
}

// uploadOnce sends a file in the form that the server takes.
func (sb *Sandbox) uploadOnce(ctx context.Context, r *io.SectionReader, path string) error {
	version := sb.state.RuntimeVersion
	switch {
	case version != "" && !versionAtLeast(version, streamedUploads):
		return sb.envd.WriteFiles(ctx, []envd.Part{{Path: path, Open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }}})
	case sb.near || version == "":
		// Next to us compressing takes longer than sending.
		_, err := sb.envd.WriteFile(ctx, path, r, r.Size(), nil)
		return err
	}
	packed := compressed(r)
	defer packed.Close()
	_, err := sb.envd.WriteFile(ctx, path, packed, -1, http.Header{"Content-Encoding": {"gzip"}})
	return err
}

// onLoopback reports whether an address is one of this machine. Where a tunnel
// begins there, more is sent than had to be.
func onLoopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.Unmap().IsLoopback() || u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost")
}

// compressed is r as gzip. It must be closed.
func compressed(r io.Reader) io.ReadCloser {
	pr, pw := io.Pipe()
	c := &compressor{PipeReader: pr, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		z, err := gzip.NewWriterLevel(pw, gzip.BestSpeed)
		if err == nil {
			if _, err = io.Copy(z, r); err == nil {
				err = z.Close()
			}
		}
		pw.CloseWithError(err)
	}()
	return c
}

type compressor struct {
	*io.PipeReader
	done chan struct{} // closed when nobody reads from the source any more
}

// Close ends the compression and returns when the source is free.
func (c *compressor) Close() error {
	err := c.PipeReader.Close()
	<-c.done
	return err
}

// versionAtLeast compares versions of numbers and dots. What is no version is
// below each.
func versionAtLeast(have, want string) bool {
	h, w := strings.Split(have, "."), strings.Split(want, ".")
	for i := range w {
		a, b := -1, 0
		if i < len(h) {
			if n, err := strconv.Atoi(h[i]); err == nil {
				a = n
			}
		}
		b, _ = strconv.Atoi(w[i])
		if a != b {
			return a > b
		}
	}
	return true
}
