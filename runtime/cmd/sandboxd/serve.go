package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/gateway"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// shutdownGrace is how long requests under way may take after the first signal.
const shutdownGrace = 5 * time.Second

// serveFlags are the options of sandboxd serve.
type serveFlags struct {
	listen       texts
	domain       domain
	state        string
	cert, key    string
	network      network
	maxLifetime  span
	maxSandboxes count
	templates    names
	insecure     bool
	verbose      bool
	debug        bool
	debugPorts   ports
}

const serveUsage = `usage: sandboxd serve [options]    run the gateway until a signal
`

func parseServe(args []string, stdout io.Writer) (*serveFlags, error) {
	f := &serveFlags{
		network:     "loopback",
		maxLifetime: span(24 * time.Hour), maxSandboxes: 1000,
	}
	fs := flag.NewFlagSet("sandboxd serve", flag.ContinueOnError)
	fs.Var(&f.listen, "listen", "`address` to serve, HOST:PORT or unix:/path; may be repeated (default 127.0.0.1:3000)")
	fs.Var(&f.domain, "domain", "`domain` under which {port}-{id}.DOMAIN leads here; answered to clients")
	fs.StringVar(&f.state, "state-dir", defaultStateDir(), "`directory` of all state")
	fs.StringVar(&f.cert, "tls-cert", "", "`file` with the certificate chain, PEM; read once, at the start")
	fs.StringVar(&f.key, "tls-key", "", "`file` with its key, PEM")
	fs.Var(&f.network, "network", "what sandboxes reach: `loopback, none, host, list or rules`; list: what a creation lists")
	fs.Var(&f.maxLifetime, "max-lifetime", "longest life of a sandbox, a `duration`")
	fs.Var(&f.maxSandboxes, "max-sandboxes", "`number` of sandboxes at one time, of all keys")
	fs.Var(&f.templates, "template", "further `name` of the template base; may be repeated")
	fs.BoolVar(&f.insecure, "insecure", false, "allow an address that others can reach without TLS")
	fs.BoolVar(&f.debug, "debug-sandbox", false, "serve a standing sandbox on port 49983 of this machine, without any key, for E2B_DEBUG=true")
	fs.Var(&f.debugPorts, "debug-port", "further `port` of the standing sandbox to serve at the same number here; may be repeated")
	fs.BoolVar(&f.verbose, "verbose", false, "log every step")
	words, err := parse(fs, args, serveUsage, stdout)
	switch {
	case err != nil:
		return nil, err
	case len(words) > 0:
		return nil, wrongUsage(fs, fmt.Sprintf("unexpected argument %q", words[0]))
	case len(f.debugPorts) > 0 && !f.debug:
		return nil, wrongUsage(fs, "--debug-port needs --debug-sandbox")
	}
	if len(f.listen) == 0 {
		f.listen = texts{"127.0.0.1:3000"}
	}
	return f, nil
}

// flagStatus prints an error of parse and returns the exit status.
func flagStatus(stderr io.Writer, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return statusOK
	}
	return complain(stderr, err)
}

// serve runs the gateway until a signal.
func serve(args []string, stdout, stderr io.Writer) int {
	f, err := parseServe(args, stdout)
	if err != nil {
		return flagStatus(stderr, err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := f.run(stdout, stderr, signals); err != nil {
		return complain(stderr, err)
	}
	return statusOK
}

func (f *serveFlags) run(stdout, stderr io.Writer, signals <-chan os.Signal) (err error) {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if _, err := checkState(f.state); err != nil {
		return err
	}
	listeners, err := f.listeners()
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	debug, err := f.debugListeners()
	if err != nil {
		return err
	}
	defer func() {
		for _, d := range debug {
			d.Close()
		}
	}()
	p, err := local.New(providers.Config{StateDir: f.state, Logger: log, Settings: map[string]string{"keep_network": "true"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	err = p.Check(ctx)
	cancel()
	if err != nil {
		return err
	}
	g, err := gateway.New(&gateway.Options{
		Provider: p, StateDir: gatewayDir(f.state), Domain: string(f.domain), Network: string(f.network),
		MaxLifetime: time.Duration(f.maxLifetime), MaxSandboxes: int(f.maxSandboxes), Templates: f.templateNames(), Logger: log,
	})
	if err != nil {
		return err
	}
	if err := firstKey(g.Keys(), stdout); err != nil {
		g.Shutdown(context.Background())
		return err
	}
	a := &serving{gateway: g, listeners: listeners, names: f.listen, debug: debug, stderr: stderr}
	return a.serve(signals)
}

func (f *serveFlags) templateNames() map[string]string {
	names := map[string]string{}
	for _, t := range f.templates {
		names[t] = "base"
	}
	return names
}

// firstKey makes a key when there is none and prints it, this once.
func firstKey(keys *gateway.Keys, stdout io.Writer) error {
	all, err := keys.List()
	if err != nil || len(all) > 0 {
		return err
	}
	k, err := keys.Create("first")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "E2B_API_KEY=%s\n", k.Secret)
	return err
}

// serving is a gateway with all its listeners.
type serving struct {
	gateway   *gateway.Server
	listeners []net.Listener
	names     []string // of listeners, as they were asked for
	debug     []debugListener
	stderr    io.Writer
}

// serve serves until the first signal, which lets requests end, or the second,
// which ends the program at once.
func (s *serving) serve(signals <-chan os.Signal) error {
	failed := make(chan error, len(s.listeners)+len(s.debug))
	var wg sync.WaitGroup
	for i, l := range s.listeners {
		fmt.Fprintln(s.stderr, "sandboxd: listening on", shown(l, s.names[i]))
		wg.Go(func() { failed <- s.gateway.Serve(l) })
	}
	for _, d := range s.debug {
		fmt.Fprintf(s.stderr, "sandboxd: warning: whoever can reach %s uses the standing sandbox without a key\n", d.Addr())
		wg.Go(func() { failed <- s.gateway.ServeDebug(d, d.port) })
	}
	var err error
	select {
	case <-signals:
		fmt.Fprintln(s.stderr, "sandboxd: shutting down; sandboxes live on. A second signal ends at once")
	case err = <-failed:
	}
	done := make(chan struct{})
	go func() { // ends with done
		select {
		case <-signals:
			os.Exit(statusError)
		case <-done:
		}
	}()
	defer close(done)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if e := s.gateway.Shutdown(ctx); e != nil && err == nil {
		err = e
	}
	wg.Wait()
	return err
}

// debugListener is one address of a port of the standing sandbox.
type debugListener struct {
	net.Listener
	port int
}

// debugPort is where SDKs in debug mode look for the runtime.
const debugPort = 49983

// debugListeners opens the ports of the standing sandbox on both loopback
// addresses: "localhost" means either. A machine may lack that of IPv6.
func (f *serveFlags) debugListeners() ([]debugListener, error) {
	if !f.debug {
		return nil, nil
	}
	var all []debugListener
	for _, port := range append(ports{debugPort}, f.debugPorts...) {
		for i, host := range []string{"127.0.0.1", "::1"} {
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil && i > 0 && !errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			if err != nil {
				for _, d := range all {
					d.Close()
				}
				return nil, &errdefs.Error{Code: "E8007", Op: "serve standing sandbox", Message: "port " + strconv.Itoa(port), Err: err}
			}
			all = append(all, debugListener{l, port})
		}
	}
	return all, nil
}

// shown is an address as clients write it, with the port that was chosen.
func shown(l net.Listener, asked string) string {
	if strings.HasPrefix(asked, "unix:") {
		return asked
	}
	return l.Addr().String()
}

// listeners opens all addresses, or none.
func (f *serveFlags) listeners() ([]net.Listener, error) {
	const op = "listen"
	var config *tls.Config
	if f.cert != "" || f.key != "" {
		if f.cert == "" || f.key == "" {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: "--tls-cert and --tls-key go together"}
		}
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: "certificate or key cannot be used", Err: err}
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	var all []net.Listener
	for _, a := range f.listen {
		l, err := f.listenOne(a, config)
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (f *serveFlags) listenOne(address string, config *tls.Config) (net.Listener, error) {
	const op = "listen"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("%q is not HOST:PORT or unix:/path", address), Err: err}
	}
	if config == nil && !f.insecure && !loopback(host) {
		return nil, &errdefs.Error{Code: "E8007", Op: op,
			Message:    address + " can be reached by others, and without TLS they can read keys and tokens",
			Suggestion: "give --tls-cert and --tls-key, listen on 127.0.0.1, or say --insecure"}
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: address, Err: err}
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// loopback reports whether a host is this machine alone.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// maxSocketPath is what the kernel takes.
const maxSocketPath = 107

// listenUnix makes a socket that only its owner can open. One that nobody
// serves any more is replaced.
func listenUnix(path string) (net.Listener, error) {
	const op = "listen"
	if !strings.HasPrefix(path, "/") {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("unix:%s does not name an absolute path", path)}
	}
	path = "/" + strings.TrimLeft(path, "/")
	if len(path) > maxSocketPath {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("%s has %d bytes; the path of a unix socket has at most %d", path, len(path), maxSocketPath)}
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != os.ModeSocket {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: path + " is there and is no socket"}
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: "somebody serves " + path + " already"}
		}
		if err := os.Remove(path); err != nil {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: path, Err: err}
		}
	}
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: path, Err: err}
	}
	return l, nil
}
