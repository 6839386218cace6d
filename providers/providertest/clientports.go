package providertest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// envServe makes a test program that imports this package the server inside a
// sandbox: what can be relied on there is a shell, and it cannot listen.
const envServe = "PROVIDERTEST_SERVE"

func init() {
	if os.Getenv(envServe) != "" {
		fmt.Fprintln(os.Stderr, serveInside())
		os.Exit(1)
	}
}

// serveInside answers HTTP on a port that it prints.
func serveInside() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s:", r.Method, r.URL.Path)
		io.Copy(w, r.Body)
	}))
}

// serverInside starts this program inside and returns its port.
func (s *clientSuite) serverInside() int {
	s.t.Helper()
	exe, err := os.Executable()
	s.must(err)
	from, err := os.Open(exe)
	s.must(err)
	defer from.Close()
	p := s.dir() + "/server"
	to, err := s.sb.FS(s.t.Context()).OpenFile(p, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	s.must(err)
	_, err = io.Copy(to, from)
	s.must(errors.Join(err, to.Close()))
	cmd := s.sb.Command(s.t.Context(), p)
	cmd.Env = []string{envServe + "=1"}
	out, err := cmd.StdoutPipe()
	s.must(err)
	s.must(cmd.Start())
	s.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() // killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	s.must(err)
	port, err := strconv.Atoi(strings.TrimSpace(line))
	s.must(err)
	return port
}

func (s *clientSuite) ports() {
	port := s.serverInside()
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	post := func(hc *http.Client, base string, h http.Header) {
		s.t.Helper()
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, base+"/path", bytes.NewReader(body))
		s.must(err)
		for k, v := range h {
			req.Header[k] = v
		}
		res, err := hc.Do(req)
		s.must(err)
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if want := "POST /path:" + string(body); err != nil || res.StatusCode != 200 || string(got) != want {
			s.t.Errorf("%s: %d, %d bytes, %v", base, res.StatusCode, len(got), err)
		}
	}
	closed := "localhost:1"
	_, err := s.sb.Dial(s.t.Context(), "tcp", closed)
	if s.o.Foreign {
		if !errors.Is(err, sandboxfn.ErrNotSupported) {
			s.t.Errorf("dial without tunnels: %v", err)
		}
	} else {
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, sandboxfn.ErrConnect) {
			s.t.Errorf("dial a closed port: %v", err)
		}
		tr := &http.Transport{DialContext: s.sb.Dial}
		post(&http.Client{Transport: tr}, fmt.Sprintf("http://localhost:%d", port), nil)
		tr.CloseIdleConnections()
	}
	if s.o.NoPorts {
		return
	}
	base, err := s.sb.URL(port)
	s.must(err)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	post(&http.Client{Transport: tr}, base, s.sb.Header(port))
}

func (s *clientSuite) terminal() {
	ctx := s.t.Context()
	term, err := s.sb.Terminal(ctx, &sandboxfn.TerminalOptions{Cols: 91, Rows: 33})
	s.must(err)
	defer term.Close()
	var seen strings.Builder
	until := func(want string, times int) {
		s.t.Helper()
		buf := make([]byte, 4096)
		for strings.Count(seen.String(), want) < times {
			n, err := term.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				s.t.Fatalf("%v before %q; so far %q", err, want, seen.String())
			}
		}
	}
	stop := time.AfterFunc(30*time.Second, func() { term.Close() })
	defer stop.Stop()
	type step struct {
		say   string
		want  string
		times int // the echo of a line must not be taken for its answer
	}
	say := func(steps ...step) {
		s.t.Helper()
		for _, c := range steps {
			_, err := io.WriteString(term, c.say)
			s.must(err)
			until(c.want, c.times)
		}
	}
	say(
		step{"PS1='re''ady> '\n", "ready> ", 1},
		step{"echo size-$(stty size | tr ' ' x)\n", "size-33x91", 1},
		step{"", "ready> ", 2}, // before that readline sets the size that it has read, and ours might come between
	)
	s.must(term.Resize(ctx, 120, 40))
	say(
		step{"echo size-$(stty size | tr ' ' x)\n", "size-40x120", 1},
		step{"echo st''arted; cat\n", "started", 1},
		step{"hello cat\n", "hello cat", 2}, // the terminal's echo and cat's: it runs
	)
	prompts := strings.Count(seen.String(), "ready> ")
	say(
		step{"\x03", "ready> ", prompts + 1}, // before that the shell may drop what is typed
		step{"echo inter''rupted\n", "interrupted", 1},
	)
	_, err = io.WriteString(term, "exit 7\n")
	s.must(err)
	if _, err := io.Copy(&seen, term); err != nil {
		s.t.Errorf("the end of the terminal: %v; it showed %q", err, seen.String())
	}
	if exit, ok := errors.AsType[*sandboxfn.ExitError](term.Wait()); !ok || exit.ExitCode != 7 {
		s.t.Errorf("the shell ended with %+v", exit)
	}
}
