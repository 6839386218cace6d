//go:build linux

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// slowLimit is long enough for a shell to begin, wherever.
const slowLimit = 2 * time.Second

// namedRig is a server with commands of both kinds.
func namedRig(t testing.TB, change func(*Options)) *rig {
	text := func(s string) *string { return &s }
	template := &model.Template{
		Env: map[string]string{"LEVEL": "template", "T": "template"},
		Commands: map[string]model.Command{
			"say": {
				Description: "says something", Run: `printf '%s|' {what} --n={times} {loud} {rest}`,
				Args: []model.Arg{{Name: "what", Required: true, Description: "what to say"}, {Name: "times", Type: "integer", Default: text("2")}, {Name: "loud", Type: "boolean"}, {Name: "rest"}},
			},
			"shell":   {Run: `printf %s {what} | wc -c; echo "$LEVEL" >&2; exit 3`, Shell: true, Args: []model.Arg{{Name: "what"}}},
			"binary":  {Run: `printf 'a\303\250\377'`},
			"env":     {Run: "env", Env: map[string]string{"LEVEL": "command"}},
			"where":   {Run: "pwd", Cwd: "sub"},
			"slow":    {Run: "sleep 100 & echo $! > pid; wait", Shell: true, Timeout: slowLimit},
			"flood":   {Run: "echo $$ > pid; exec yes", Shell: true, Timeout: slowLimit},
			"forever": {Run: "echo $$ > pid; echo up; sleep 100", Shell: true, Timeout: command.NoTimeout},
			"secret":  {Run: "echo hidden", Hidden: true},
			"gone":    {Run: "/no/such/program"},
			"died":    {Run: "kill -9 $$", Shell: true},
		},
	}
	type add struct {
		A, B int
		Fail string `json:"fail,omitempty"`
	}
	r := command.NewRegistry()
	for _, err := range []error{
		command.Register(r, "add", func(ctx context.Context, a add) (map[string]int, error) {
			switch a.Fail {
			case "error":
				return nil, errors.New("it does not add up")
			case "panic":
				panic("too much")
			case "hang":
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return map[string]int{"sum": a.A + a.B}, nil
		}, &command.RegisterOptions{Description: "adds", Timeout: slowLimit}),
		command.Register(r, "exec", func(ctx context.Context, _ struct{}) (string, error) {
			out, err := (&command.Exec{Path: "sh", Args: []string{"-c", "echo $LEVEL-$X; exit 4"}, Env: map[string]string{"X": "function"}}).Run(ctx)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s%d", out.Stdout, out.ExitCode), nil
		}, nil),
		command.Register(r, "odd", func(context.Context, struct{}) (any, error) { return make(chan int), nil }, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return newRig(t, func(o *Options) {
		o.Template, o.Commands = template, r
		o.Env = map[string]string{"LEVEL": "sandbox"}
		if err := os.Mkdir(filepath.Join(o.DefaultWorkDir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(o)
		}
	})
}

func (r *rig) post(t testing.TB, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestNamedCommands(t *testing.T) {
	t.Parallel()
	r := namedRig(t, nil)
	for _, c := range []struct {
		name, args string
		status     int
		code, want string // of the answer as JSON, or a part of the message
	}{
		{"say", `{"what":"a b;$(id)","loud":true}`, 200, "", `{"stdout":"a b;$(id)|--n=2|true|","stderr":"","exit_code":0}`},
		{"say", `{"what":"{times}","times":"7","rest":""}`, 200, "", `{"stdout":"{times}|--n=7||","stderr":"","exit_code":0}`},
		{"shell", `{"what":"'; exit 0 #"}`, 200, "", `{"stdout":"11\n","stderr":"sandbox\n","exit_code":3,"status":"exit status 3"}`},
		{"shell", ``, 200, "", `{"stdout":"0\n","stderr":"sandbox\n","exit_code":3,"status":"exit status 3"}`},
		{"binary", ``, 200, "", `{"stdout":"aè\ufffd","stderr":"","stdout_base64":"YcOo/w==","exit_code":0}`},
		{"secret", `{}`, 200, "", `{"stdout":"hidden\n","stderr":"","exit_code":0}`},
		{"died", `{}`, 200, "", `{"stdout":"","stderr":"","exit_code":-1,"status":"signal: killed"}`},
		{"add", `{"a":1,"b":"41"}`, 200, "", `{"result":{"sum":42}}`},
		{"exec", `{}`, 200, "", `{"result":"sandbox-function\n4"}`},
		{"say", `{}`, 400, "E3014", "argument what (string) is missing"},
		{"say", `{"what":"","times":1.5}`, 400, "E3014", "argument times is not an integer"},
		{"say", `{"what":"","more":1}`, 400, "E3014", `there is no argument "more"; there are what, times, loud, rest`},
		{"add", `{"a":1}`, 400, "E3014", "argument b (integer) is missing"},
		{"say", `["what"]`, 400, "E3006", "JSON object"},
		{"add", `{"a":1,"b":2,"fail":"error"}`, 500, "E3015", "it does not add up"},
		{"add", `{"a":1,"b":2,"fail":"panic"}`, 500, "E3015", "panic: too much"},
		{"add", `{"a":1,"b":2,"fail":"hang"}`, 408, "E3001", "the timeout of 2s passed"},
		{"odd", `{}`, 500, "E3015", "unsupported type"},
		{"slow", `{}`, 408, "E3001", "the timeout of 2s passed"},
		{"gone", `{}`, 404, "E3007", "No such file"},
		{"nope", `{}`, 404, "E3005", `no command "nope"; there are add, binary, `},
	} {
		res, body := r.post(t, "/commands/"+c.name, c.args)
		if res.StatusCode != c.status || res.Header.Get("Sandbox-Error-Code") != c.code {
			t.Errorf("%s %s: %s %s %s", c.name, c.args, res.Status, res.Header.Get("Sandbox-Error-Code"), body)
			continue
		}
		if c.status == 200 {
			var got, want any
			if err := errors.Join(json.Unmarshal([]byte(body), &got), json.Unmarshal([]byte(c.want), &want)); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %s: %swant %s (%v)", c.name, c.args, body, c.want, err)
			}
		} else if !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), c.want) || strings.Contains(body, "secret") {
			t.Errorf("%s %s: %swant %s", c.name, c.args, body, c.want)
		}
	}
	res, body := r.post(t, "/commands/where", "")
	if want := filepath.Join(r.opts.DefaultWorkDir, "sub"); res.StatusCode != 200 || !strings.Contains(body, want) {
		t.Errorf("%s, want %s", body, want)
	}
	waitGone(t, filepath.Join(r.opts.DefaultWorkDir, "pid"))
}

// waitGone waits until the process whose number is in file has ended.
func waitGone(t testing.TB, file string) {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it runs: %s", stat)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestNamedCommandsAreListed(t *testing.T) {
	t.Parallel()
	r := namedRig(t, nil)
	res, err := r.http.Get("http://sandbox/commands")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var list command.List
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list.Commands {
		names = append(names, c.Name)
		if c.Name == "say" {
			got, _ := json.Marshal(c)
			want := `{"name":"say","description":"says something","args":[{"name":"what","type":"string","required":true,"description":"what to say"},` +
				`{"name":"times","type":"integer","required":false,"default":2,"description":""},{"name":"loud","type":"boolean","required":false,"description":""},` +
				`{"name":"rest","type":"string","required":false,"description":""}]}`
			if string(got) != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		}
	}
	if got, want := strings.Join(names, " "), "add binary died env exec flood forever gone odd say shell slow where"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNamedCommandEvents(t *testing.T) {
	t.Parallel()
	r := namedRig(t, nil)
	for _, c := range []struct{ name, args, want string }{
		{"binary", `{}`, "start %|stdout {\"data\":\"aè�\",\"data_base64\":\"YcOo/w==\"}|exit {\"exit_code\":0}|"},
		{"add", `{"a":1,"b":2}`, `result {"result":{"sum":3}}|`},
		{"slow", `{}`, `start %|error {"code":"E3001","error":"the timeout of 2s passed","status":408}|`},
	} {
		res, body := r.post(t, "/commands/"+c.name, c.args, "Accept", "text/event-stream")
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: %s %v", c.name, res.Status, res.Header)
		}
		got := strings.NewReplacer("event: ", "", "\ndata: ", " ", "\n\n", "|").Replace(body)
		if start, rest, ok := strings.Cut(got, "|"); ok && strings.HasPrefix(start, `start {"pid":`) {
			got = "start %|" + rest
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// What is wrong before anything runs is an answer like any other.
	if res, body := r.post(t, "/commands/say", `{}`, "Accept", "text/event-stream"); res.StatusCode != 400 {
		t.Errorf("%s %s", res.Status, body)
	}
}

// eventLines runs a named command and returns the lines of what is told of it.
func (r *rig) eventLines(t *testing.T, ctx context.Context, command string) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/commands/"+command, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return bufio.NewScanner(res.Body)
}

// Output comes as it is printed, and a caller that goes away takes the command
// along.
func TestNamedCommandEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	r := namedRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := r.eventLines(t, ctx, "forever")
	for lines.Scan() && lines.Text() != `data: {"data":"up\n"}` {
	}
	cancel()
	waitGone(t, filepath.Join(r.opts.DefaultWorkDir, "pid"))
}

// A caller that takes nothing of the output does not lift the limit.
func TestNamedCommandOfStalledCaller(t *testing.T) {
	t.Parallel()
	r := namedRig(t, nil)
	lines := r.eventLines(t, t.Context(), "flood")
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && lines.Text() != "event: stdout" {
	}
	waitGone(t, filepath.Join(r.opts.DefaultWorkDir, "pid"))
	// What was printed in time is still there, and last what ended it.
	last := ""
	for lines.Scan() {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			last = event
		}
	}
	if err := lines.Err(); err != nil || last != "error" {
		t.Errorf("the last event is %q, %v", last, err)
	}
}

func TestNamedCommandsSwitchedOff(t *testing.T) {
	t.Parallel()
	r := namedRig(t, func(o *Options) { o.Template.Server = &model.Server{Disable: []string{"commands.run"}} })
	if res, body := r.post(t, "/commands/say", `{"what":"x"}`); res.StatusCode != 404 || res.Header.Get("Sandbox-Error-Code") != "E8022" {
		t.Errorf("%s %s", res.Status, body)
	}
	if res, err := r.http.Get("http://sandbox/commands"); err != nil || res.StatusCode != 200 {
		t.Errorf("%v, %v", res, err)
	} else {
		res.Body.Close()
	}
}
