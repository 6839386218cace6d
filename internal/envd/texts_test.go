package envd

import (
	"errors"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// What the server says of a file is not said again by the errno under it.
func TestErrnoIsNotSaidTwice(t *testing.T) {
	for _, c := range []struct {
		code errdefs.Code
		msg  string
		want error
	}{
		{"E4001", "path /x not found: no such file or directory", fs.ErrNotExist},
		{"E4003", "path /x is not a directory", syscall.ENOTDIR},
		{"E4002", "error watching '/root': permission denied", fs.ErrPermission},
	} {
		err := coded(c.code, "watch directory", c.msg)
		if got, want := err.Error(), string(c.code)+" watch directory: "+c.msg; got != want || !errors.Is(err, c.want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A certificate that nobody vouches for is named as such, by requests of each
// kind.
func TestCertificateIsNotTrusted(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(t.Output(), "", 0)
	srv.StartTLS()
	defer srv.Close()
	c, err := New(&Options{URL: srv.URL, Token: "T"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.transport.base.Proxy = nil
	_, stat := c.Stat(t.Context(), "/x")
	_, channel := c.OpenChannel(t.Context(), NewChannelID())
	for name, err := range map[string]error{"health": c.Health(t.Context()), "stat": stat, "channel": channel} {
		e, ok := errors.AsType[*errdefs.Error](err)
		if !ok || e.Code != "E5001" || !strings.Contains(e.Message, "the certificate of "+strings.TrimPrefix(srv.URL, "https://")+" is not trusted") ||
			!strings.Contains(e.Hint(), "SANDBOX_CA_FILE") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
