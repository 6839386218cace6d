//go:build linux

package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestAPIStdin: a process in the background reads what is written to it, in order and
// to the byte, until its input is ended, whichever protocol started it.
func TestAPIStdin(t *testing.T) {
	r := newRig(t, nil)
	stdin := func(pid uint32) string { return fmt.Sprintf("/process/%d/stdin", pid) }
	start := func(body string) uint32 {
		t.Helper()
		var s httpapi.Started
		r.call(t, "POST", "/process/start", body).into(t, &s)
		return uint32(s.Pid)
	}
	const cat = "cat; echo end"
	byAPI := start(`{"command":"` + cat + `","stdin":true}`)
	byEnvd, _ := r.begin(t, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", cat}}})
	for name, pid := range map[string]uint32{"this API": byAPI, "envd": byEnvd} {
		var got httpapi.Written
		r.call(t, "POST", stdin(pid), `{"data":"wörld\n"}`).into(t, &got)
		if got != (httpapi.Written{Pid: int(pid), Bytes: 7}) {
			t.Errorf("%s: got %+v", name, got)
		}
		if err := r.send(t.Context(), pid, []byte("by envd\n")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r.call(t, "POST", stdin(pid), `{"data_base64":"`+base64.StdEncoding.EncodeToString([]byte("\xff\x00\n"))+`","close":true}`).into(t, &got)
		if got != (httpapi.Written{Pid: int(pid), Bytes: 3, Closed: true}) {
			t.Errorf("%s: got %+v", name, got)
		}
		res, err := r.connect(t.Context(), pid)
		if want := "wörld\nby envd\n\xff\x00\nend\n"; err != nil || res.stdout != want {
			t.Errorf("%s: printed %q, %v, want %q", name, res.stdout, err, want)
		}
	}

	without := start(`{"argv":["sleep","1000"]}`)
	with := start(`{"argv":["sleep","1000"],"stdin":true}`)
	closed := start(`{"argv":["sleep","1000"],"stdin":true}`)
	if a := r.call(t, "POST", stdin(closed), `{"close":true}`); a.status != http.StatusOK {
		t.Errorf("close: %d %s", a.status, a.body)
	}
	term := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	for name, c := range map[string]struct {
		pid        uint32
		body, want string
	}{
		"ended":             {byAPI, `{"data":"x"}`, "404 E3010"},
		"none":              {1 << 30, `{"data":"x"}`, "404 E3010"},
		"no input":          {without, `{"data":"x"}`, "409 E3013"},
		"closed":            {closed, `{"data":"x"}`, "409 E3013"},
		"closed again":      {closed, `{"close":true}`, "409 E3013"},
		"end of no input":   {without, `{"close":true}`, "409 E3013"},
		"both":              {with, `{"data":"x","data_base64":"eA=="}`, "400 E3011"},
		"no base64":         {with, `{"data_base64":"!"}`, "400 E3006"},
		"nothing":           {with, `{}`, "200 "},
		"end of a terminal": {uint32(term.Pid), `{"close":true}`, "400 E3011"},
	} {
		a := r.call(t, "POST", stdin(c.pid), c.body)
		if got := fmt.Sprintf("%d %s", a.status, a.code); got != c.want {
			t.Errorf("%s: got %s %s, want %s", name, got, a.body, c.want)
		}
	}
	screen := r.attach(t, term)
	r.call(t, "POST", stdin(uint32(term.Pid)), `{"data":"echo typed-$((1+1))\n"}`)
	screen.until("typed-2")

	// One that does not read holds up its writer alone, who can give up.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", "http://sandbox"+stdin(with), strings.NewReader(`{"data":"`+strings.Repeat("x", 1<<20)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		resp, err := r.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		over <- err
	}()
	if a := r.call(t, "POST", stdin(uint32(term.Pid)), `{}`); a.status != http.StatusOK {
		t.Errorf("meanwhile: %d %s", a.status, a.body)
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("a process that does not read has taken 1 MiB")
	}
	for _, pid := range []uint32{without, with, closed} {
		check(t, r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL))
	}
}

// TestAPIStdinSwitches: writing to processes and typing into terminals are switched
// off apart, for this endpoint as for the calls of envd.
func TestAPIStdinSwitches(t *testing.T) {
	for _, off := range []string{"process.input", "terminal.input"} {
		r := newRig(t, func(o *Options) { o.Template = &model.Template{Server: &model.Server{Disable: []string{off}}} })
		var s httpapi.Started
		r.call(t, "POST", "/process/start", `{"argv":["sleep","1000"],"stdin":true}`).into(t, &s)
		term := r.openTerminal(t, `{"shell":"/bin/sh"}`)
		for pid, group := range map[int]string{s.Pid: "process.input", term.Pid: "terminal.input"} {
			want := http.StatusOK
			if off == group || off == "process.input" { // which is the endpoint itself
				want = http.StatusNotFound
			}
			if a := r.call(t, "POST", fmt.Sprintf("/process/%d/stdin", pid), `{"data":"\n"}`); a.status != want || want == http.StatusNotFound && a.code != "E8022" {
				t.Errorf("%s off, %s: got %d %s %s", off, group, a.status, a.code, a.body)
			}
		}
		check(t, r.signal(t.Context(), uint32(s.Pid), pb.Signal_SIGNAL_SIGKILL))
	}
}
