package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// namedOptions gives a runtime commands of both kinds.
func namedOptions(o *server.Options) {
	three := "3"
	o.Template = &model.Template{Commands: map[string]model.Command{
		"say": {Description: "says it", Run: "printf '%s|%s' {what} {n}", Args: []model.Arg{
			{Name: "what", Required: true}, {Name: "n", Type: "integer", Default: &three, Description: "how often"},
		}},
		"fail":   {Run: `printf 'a\303\377'; echo why >&2; exit 5`, Shell: true},
		"killed": {Run: "kill -9 $$", Shell: true},
		"sleep":  {Run: "sleep 100"},
		"many":   {Run: "head -c 3000000 /dev/zero"},
	}}
	type add struct{ A, B int }
	r := command.NewRegistry()
	for _, err := range []error{
		command.Register(r, "add", func(_ context.Context, a add) (int, error) {
			if a.A < 0 {
				return 0, errors.New("it is negative")
			}
			return a.A + a.B, nil
		}, nil),
		command.Register(r, "nothing", func(context.Context, struct{}) (any, error) { return nil, nil }, &command.RegisterOptions{Hidden: true}),
	} {
		if err != nil {
			panic(err)
		}
	}
	o.Commands = r
}

func TestInvoke(t *testing.T) {
	t.Parallel()
	sb := create(t, hostClient(t, &hostProvider{options: namedOptions}, nil), nil)
	ctx := t.Context()
	list, err := sb.Commands(ctx)
	if err != nil || len(list) != 6 {
		t.Fatalf("%v, %v", list, err)
	}
	want := NamedCommand{"say", "says it", []NamedArg{{Name: "what", Type: "string", Required: true}, {"n", "integer", false, float64(3), "how often"}}}
	if got := list[4]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}

	res, err := sb.Invoke(ctx, "say", map[string]any{"what": "a;b 'c' {n}"}, nil)
	if err != nil || string(res.Stdout) != "a;b 'c' {n}|3" || res.Result != nil {
		t.Errorf("%+v, %v", res, err)
	}
	if err := res.Decode(new(int)); errdefs.CodeOf(err) != "E3011" {
		t.Errorf("%v", err)
	}
	type args struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	sum := 0
	if res, err = sb.Invoke(ctx, "add", args{40, 2}, nil); err != nil || res.Decode(&sum) != nil || sum != 42 {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err = sb.Invoke(ctx, "nothing", nil, nil); err != nil || string(res.Result) != "null" {
		t.Errorf("%+v, %v", res, err)
	}
	var out, errs bytes.Buffer
	res, err = sb.Invoke(ctx, "fail", nil, &InvokeOptions{Stderr: &errs})
	exit, ok := errors.AsType[*ExitError](err)
	if !ok || exit.ExitCode != 5 || res.ExitCode != 5 || string(res.Stdout) != "a\xc3\xff" || errs.String() != "why\n" || errdefs.CodeOf(err) != "E3002" {
		t.Errorf("%+v, %v, %q", res, err, errs.String())
	}
	if _, err = sb.Invoke(ctx, "killed", nil, nil); !errors.As(err, &exit) || exit.Signal != "killed" {
		t.Errorf("%v", err)
	}
	if _, err = sb.Invoke(ctx, "many", nil, &InvokeOptions{Stdout: &out}); err != nil || out.Len() != 3000000 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
	if res, err = sb.Invoke(ctx, "many", nil, &InvokeOptions{MaxOutput: 1000}); err != nil || len(res.Stdout) > 1200 {
		t.Errorf("%d bytes, %v", len(res.Stdout), err)
	}
}

func TestInvokeErrors(t *testing.T) {
	t.Parallel()
	sb := create(t, hostClient(t, &hostProvider{options: namedOptions}, nil), nil)
	canceled, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
	for _, c := range []struct {
		ctx  context.Context
		name string
		args any
		o    *InvokeOptions
		is   error
		text string
	}{
		{t.Context(), "nope", nil, nil, ErrNamedCommandNotFound, "add, fail, killed, many, say, sleep"},
		{t.Context(), "../files", nil, nil, ErrNamedCommandNotFound, ""},
		{t.Context(), "say", nil, nil, ErrArgument, "argument what (string) is missing"},
		{t.Context(), "say", map[string]any{"what": "x", "n": true}, nil, ErrArgument, "argument n is not an integer"},
		{t.Context(), "say", []string{"x"}, nil, ErrArgument, "[]string"},
		{t.Context(), "say", map[string]any{"what": make(chan int)}, nil, ErrArgument, ""},
		{t.Context(), "add", map[string]any{"a": -1, "b": 1}, nil, &Error{Code: "E3015"}, "it is negative"},
		{t.Context(), "sleep", nil, &InvokeOptions{Timeout: 100 * time.Millisecond}, ErrCommandTimeout, "100ms"},
		{canceled, "sleep", nil, nil, cause, ""},
		{t.Context(), "many", nil, &InvokeOptions{Stdout: failingWriter{}}, errFailing, "standard output of command many"},
	} {
		begin := time.Now()
		_, err := sb.Invoke(c.ctx, c.name, c.args, c.o)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || time.Since(begin) > 20*time.Second {
			t.Errorf("%s %v: %v, want %v with %q", c.name, c.args, err, c.is, c.text)
		}
	}
	eventuallyNoSleep(t, sb)
}

var errFailing = errors.New("the disk is full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errFailing }

// eventuallyNoSleep waits until the sandbox has no process.
func eventuallyNoSleep(t *testing.T, sb *Sandbox) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		list, err := sb.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %+v", list)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A server that only speaks the protocol of E2B, one that is switched off, and
// answers that make no sense.
func TestInvokeOnOtherServers(t *testing.T) {
	t.Parallel()
	stream := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				fmt.Fprint(w, `{"commands":null}`)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, body)
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		list errdefs.Code
		run  errdefs.Code
	}{
		"envd": {http.NotFound, "E8004", "E8004"},
		"page": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "E8004", "E8004"},
		"off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Sandbox-Error-Code", "E8022")
			w.WriteHeader(404)
		}, "E8022", "E8022"},
		"refused":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "E1006", "E1006"},
		"cut":          {stream("event: start\ndata: {\"pid\":1}\n\n"), "E8004", "E5003"},
		"no data":      {stream("event: exit\ndata: {}\n\n"), "E8004", "E3006"},
		"not JSON":     {stream("event: exit\ndata: {\n\n"), "E8004", "E3006"},
		"failed":       {stream(": alive\n\nevent: error\ndata: {\"code\":\"E3001\",\"error\":\"late\"}\n\n"), "E8004", "E3001"},
		"foreign code": {stream("event: error\ndata: {\"code\":\"E2022\",\"error\":\"no\"}\n\n"), "E8004", "E3000"},
		"good":         {stream("event: new\ndata: {}\n\nevent: result\r\ndata: {\"result\":\r\ndata: 1}\r\n\r\n"), "E8004", ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.h)
			t.Cleanup(srv.Close)
			p := &hostProvider{edit: func(_ *providers.CreateRequest, s *providers.Sandbox) {
				s.Data.Channels = false
				s.Data.Dial = func(ctx context.Context) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
				}
			}}
			sb := create(t, hostClient(t, p, nil), nil)
			if _, err := sb.Commands(t.Context()); errdefs.CodeOf(err) != c.list {
				t.Errorf("list: %v, want %s", err, c.list)
			}
			if _, err := sb.Invoke(t.Context(), "x", nil, nil); errdefs.CodeOf(err) != c.run {
				t.Errorf("run: %v, want %s", err, c.run)
			}
		})
	}
}

// BenchmarkNamedCommand reports what a named command takes as a ratio to a plain
// command with the same program.
func BenchmarkNamedCommand(b *testing.B) {
	sb := create(b, hostClient(b, &hostProvider{options: func(o *server.Options) {
		o.Template = &model.Template{Commands: map[string]model.Command{"true": {Run: "true"}}}
	}}, nil), nil)
	ctx := b.Context()
	var plain, named time.Duration
	for b.Loop() {
		begin := time.Now()
		if err := sb.Command(ctx, "true").Run(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if _, err := sb.Invoke(ctx, "true", nil, nil); err != nil {
			b.Fatal(err)
		}
		plain, named = plain+middle.Sub(begin), named+time.Since(middle)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(plain.Microseconds())/float64(b.N), "plain-µs")
	b.ReportMetric(float64(named.Microseconds())/float64(b.N), "named-µs")
	b.ReportMetric(float64(named)/float64(plain), "x-plain")
}

// From a template to a real sandbox of this machine: its commands with their
// variables, which everything else there has too.
func TestInvokeInSandbox(t *testing.T) {
	c := snapshotSandbox(t, nil).client
	m := &model.Template{
		Name: "named", Env: map[string]string{"A": "template", "B": "template", "C": "template"},
		Commands: map[string]model.Command{
			"env":   {Run: "env", Env: map[string]string{"C": "command", "DB_PASSWORD": "hidden"}},
			"count": {Run: "printf %s {text} | wc -c", Shell: true, Args: []model.Arg{{Name: "text", Required: true}}},
		},
	}
	_, err := c.BuildTemplate(t.Context(), m, nil)
	must(t, err)
	sb, err := c.Create(t.Context(), &CreateOptions{Template: "named", Env: map[string]string{"B": "sandbox", "C": "sandbox"}})
	fromSnapshot(t, err)
	closeAtEnd(t, sb)
	list, err := sb.Commands(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "count" {
		t.Errorf("%+v, %v", list, err)
	}
	res, err := sb.Invoke(t.Context(), "env", nil, nil)
	must(t, err)
	for _, want := range []string{"A=template", "B=sandbox", "C=command", "DB_PASSWORD=hidden", "SANDBOX_ID=" + sb.ID()} {
		if !strings.Contains("\n"+string(res.Stdout), "\n"+want+"\n") {
			t.Errorf("no %s: %s", want, res.Stdout)
		}
	}
	if got := inside(t, sb, "echo $A $B $C"); got != "template sandbox sandbox" {
		t.Errorf("a command: %q", got)
	}
	res, err = sb.Invoke(t.Context(), "count", map[string]any{"text": "$(id); '"}, nil)
	if err != nil || strings.TrimSpace(string(res.Stdout)) != "8" {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := sb.Invoke(t.Context(), "count", nil, nil); !errors.Is(err, ErrArgument) {
		t.Errorf("%v", err)
	}
}
