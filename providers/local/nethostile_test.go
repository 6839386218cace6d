//go:build linux

package local

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// TestNetworkFlood has hostile code open thousands of connections, half of them
// to say nothing for ever, and then ends the sandbox: the program outside stays
// small meanwhile, other sandboxes work, and nothing is left.
func TestNetworkFlood(t *testing.T) { bothEngines(t, nil, networkFlood) }

func networkFlood(t *testing.T, w *netWorld) {
	other := w.sandbox(t, "good.test:PORT")
	before := count(t)
	many, held := 10000, 4000 // which the limit of descriptors allows
	if w.guest {              // where each takes longer: more than either side may hold, and not all at once
		many, held = maxGuestConns+400, maxInside+50
	}
	sb := w.sandbox(t, "good.test:PORT")
	done := make(chan string, 1)
	go func() {
		out, _, err := command(t.Context(), sb, "/usr/bin/env", envRole+"=net flood", envArgs+"="+fmt.Sprint(w.port, "\n", many, "\n", held), sb.Artifacts[ownArtifact(t).Digest])
		done <- fmt.Sprint(out, err)
	}()
	g := &target{t: t, p: w.p, sb: sb, program: sb.Artifacts[ownArtifact(t).Digest], network: netList, guest: w.guest}
	w.p.mu.Lock()
	e := w.p.live[sb.ID].egress
	w.p.mu.Unlock()
	eventually(t, "connections are open", func() bool { return len(e.inSlots) > 100 })
	for _, user := range users() { // nothing of them is in a command
		if out := g.run(t, user, "descriptors", "no name of any"); out != "" {
			t.Errorf("%s: %s", user, out)
		}
	}
	most := before
	for ended := false; !ended; {
		select {
		case out := <-done:
			if !strings.HasPrefix(out, "opened "+strconv.Itoa(many)) {
				t.Error(out)
			}
			ended = true
		case <-time.After(50 * time.Millisecond):
			now := count(t)
			most.descriptors, most.goroutines = max(most.descriptors, now.descriptors), max(most.goroutines, now.goroutines)
		}
	}
	t.Logf("before %+v, most %+v", before, most)
	// Each connection to the outside has one here to the server of this test, and
	// splice(2) takes a pipe in each direction.
	if most.descriptors > before.descriptors+maxInside+6*maxOutside+100 || most.goroutines > before.goroutines+4*(maxInside+maxOutside) {
		t.Errorf("before %+v, most %+v", before, most)
	}
	if out := play(t, other, "user", "fetch", fmt.Sprintf("http://good.test:%d/", w.port)); out != "200 "+goodText {
		t.Errorf("the other sandbox: %q", out)
	}
	eventually(t, "its room is free again", func() bool {
		return play(t, sb, "user", "fetch", fmt.Sprintf("http://good.test:%d/", w.port)) == "200 "+goodText
	})
	events, err := w.p.NetworkLog(t.Context(), sb.ID)
	if err != nil || len(events) == 0 || len(events) > 10000 {
		t.Errorf("%d events, %v", len(events), err)
	}
	if err := w.p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	w.good.CloseClientConnections()
	checkReturned(t, before)
}

func init() {
	roles["net flood"] = func() error {
		var port string
		var many, held int
		if _, err := fmt.Sscan(os.Getenv(envArgs), &port, &many, &held); err != nil {
			return err
		}
		good, proxy := net.JoinHostPort("good.test", port), "127.0.0.1:3128"
		var open []net.Conn
		n := 0
		for i := range many {
			addr := good
			if i%3 == 0 {
				addr = proxy
			}
			c, err := net.DialTimeout("tcp", addr, 10*time.Second)
			n++
			if err != nil {
				continue
			}
			if i%5 == 0 {
				io.WriteString(c, "GET / HTTP/1.1\r\nHo") // and never the rest
			}
			open = append(open, c)
			if len(open) > held {
				open[0].Close()
				open = open[1:]
			}
		}
		fmt.Println("opened", n)
		return nil
	}
	roles["keeper"] = keeperRole
}

// keeperRole makes a detached sandbox with a list and waits to be killed.
func keeperRole() error {
	p, err := New(providers.Config{StateDir: os.Getenv(envState), Settings: map[string]string{settingKeepNetwork: "true", settingHosts: "good.test=127.0.0.1,x.wild.test=127.0.0.1,y.wild.test=127.0.0.1"}})
	if err != nil {
		return err
	}
	port := os.Getenv(envArgs)
	sb, err := p.Create(context.Background(), providers.CreateRequest{Detached: true, Isolation: os.Getenv(envIsolation),
		Network: &providers.NetworkPolicy{Mode: "list", Allow: []string{"good.test:" + port, "*.wild.test:" + port}}})
	if err != nil {
		return err
	}
	out, _, err := shell(context.Background(), sb, "getent ahostsv4 y.wild.test | head -1; exec 2>&1; "+getOverTCP("y.wild.test", port))
	if err != nil {
		return err
	}
	fmt.Println(sb.ID, strings.ReplaceAll(out, "\n", " "))
	bufio.NewReader(os.Stdin).ReadByte()
	return nil
}

// getOverTCP is a shell line that asks a server without any other program.
func getOverTCP(host, port string) string {
	return fmt.Sprintf(`exec /bin/bash -c 'exec 3<>/dev/tcp/%s/%s; printf "GET / HTTP/1.0\r\nHost: %s\r\n\r\n" >&3; cat <&3 | tail -1'`, host, port, host)
}

// TestKeptNetwork kills the process that serves the network of a detached
// sandbox; the next one goes on, with the same addresses.
func TestKeptNetwork(t *testing.T) {
	t.Run(engineNative, func(t *testing.T) {
		needIsolation(t)
		keptNetwork(t, isolationContainer)
	})
	t.Run(engineGVisor, func(t *testing.T) {
		needGVisor(t)
		keptNetwork(t, isolationGVisor)
	})
}

func keptNetwork(t *testing.T, isolation string) {
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip("no bash to open a connection with")
	}
	good := textServer(t, goodText)
	port := strconv.Itoa(portOf(t, good))
	root := testRoot(t)
	cmd := role(t, "keeper", envState+"="+root, envArgs+"="+port, envIsolation+"="+isolation)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	id, said, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !strings.Contains(said, goodText) {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("%q %v", line, err)
	}
	address, _, _ := strings.Cut(said, " ")
	cmd.Process.Kill()
	cmd.Wait()

	hosts := map[string]string{settingKeepNetwork: "true", settingHosts: "good.test=127.0.0.1,x.wild.test=127.0.0.1,y.wild.test=127.0.0.1"}
	// What connects while nobody serves waits for the next.
	alone := openProvider(t, root)
	waiting, err := alone.Connect(t.Context(), id, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	byAddress := strings.Replace(getOverTCP("y.wild.test", port), "/dev/tcp/y.wild.test", "/dev/tcp/"+address, 1)
	background(t, waiting, "("+strings.Replace(byAddress, "; printf", "; echo >/tmp/begun; printf", 1)+") > /tmp/waited")
	eventually(t, "it is connected", func() bool {
		_, end := sh(t, waiting, "test -e /tmp/begun")
		return end.ExitCode == 0
	})
	for range 2 { // the second time after an orderly end
		p, err := New(providers.Config{StateDir: root, Settings: hosts, Logger: testLogger(t)})
		if err != nil {
			t.Fatal(err)
		}
		sb, err := p.Connect(t.Context(), id, providers.ConnectRequest{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "what waited is served", func() bool {
			out, _ := sh(t, sb, "cat /tmp/waited")
			return strings.Contains(out, goodText)
		})
		// What was known before is still there without being asked for.
		if out, _ := sh(t, sb, "exec 2>&1; "+byAddress); !strings.Contains(out, goodText) {
			t.Errorf("by address %s: %q", address, out)
		}
		for _, name := range []string{"good.test", "x.wild.test"} {
			if out, _ := sh(t, sb, "exec 2>&1; "+getOverTCP(name, port)); !strings.Contains(out, goodText) {
				t.Errorf("%s: %q", name, out)
			}
		}
		// One keeper at a time.
		second, err := New(providers.Config{StateDir: root, Settings: hosts})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		second.mu.Lock()
		if n := len(second.kept); n != 0 {
			t.Errorf("%d networks are kept twice", n)
		}
		second.mu.Unlock()
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	p := openProvider(t, root)
	if err := p.Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, root)
}

// testEgress decides as that of a sandbox does, without one.
func testEgress(t testing.TB, rules ...string) *egress {
	t.Helper()
	list, err := netrule.ParseList(rules)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.close)
	audit, err := openNetAudit(dir)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	e, err := newEgress(newNetPlan(list, false), netSettings{lookup: lookup}, newNameTable(list.Names()), audit, testLogger(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return e
}

// TestNameTable checks bounds and that both blocks lead back to the name.
func TestNameTable(t *testing.T) {
	table := newNameTable([]string{"a.test"})
	for i := range maxNames - 1 {
		name := fmt.Sprintf("n%d.test", i)
		v4, v6, first, err := table.address(name)
		if err != nil || !first {
			t.Fatal(err)
		}
		for _, a := range []netip.Addr{v4, v6} {
			if got, ours := table.name(a); got != name || !ours {
				t.Fatalf("%s is %q", a, got)
			}
		}
	}
	if _, _, _, err := table.address("more.test"); err != errManyNames {
		t.Error(err)
	}
	if _, _, first, err := table.address("n7.test"); first || err != nil {
		t.Error(first, err)
	}
	for _, a := range []string{"198.18.0.0", "198.18.0.1", "198.19.255.255", "fd73:616e:6462:6f78::", "fd73:616e:6462:6f78:ffff:ffff:ffff:ffff"} {
		if name, ours := table.name(netip.MustParseAddr(a)); name != "" || !ours {
			t.Errorf("%s is %q, %v", a, name, ours)
		}
	}
	if _, ours := table.name(netip.MustParseAddr("198.17.255.255")); ours {
		t.Error("an address outside of the block")
	}
}

// TestAuditBounds fills the log.
func TestAuditBounds(t *testing.T) {
	dir, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	a, err := openNetAudit(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	a.now = func() time.Time { return at }
	for range 3 * netLogBurst {
		a.note(providers.NetworkEvent{Kind: "dns", Host: strings.Repeat("x", 5000)})
	}
	if a.dropped != 2*netLogBurst {
		t.Errorf("%d events dropped", a.dropped)
	}
	for range 10000 {
		at = at.Add(time.Second)
		a.note(providers.NetworkEvent{Kind: "dns", Host: strings.Repeat("x", 5000)})
	}
	a.close()
	total := 0
	for _, name := range []string{fileNetLog, fileNetLogOld} {
		b, err := dir.read(name, 2*netLogHalf)
		if err != nil || len(b) > netLogHalf+1024 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		total += bytes.Count(b, []byte("\n"))
	}
	if total < 1000 {
		t.Errorf("%d events are kept", total)
	}
}

func FuzzDNS(f *testing.F) {
	e := testEgress(f, "good.test", "*.wild.test")
	for _, name := range []string{"good.test.", "x.wild.test.", "evil.test.", "localhost."} {
		f.Add(question(name, dnsmessage.TypeA))
		f.Add(question(name, dnsmessage.TypeAAAA))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, err := e.answerDNS(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response {
			t.Fatalf("%x is answered with %x: %v", b, answer, err)
		}
		for _, r := range m.Answers {
			if n := strings.ToLower(r.Header.Name.String()); n != "good.test." && !strings.HasSuffix(n, ".wild.test.") && !strings.HasSuffix("."+n, ".localhost.") {
				t.Fatalf("%s has an address", n)
			}
		}
	})
}

func FuzzSocks(f *testing.F) {
	f.Add([]byte("\x01\x00\x05\x01\x00\x03\x09good.test\x01\xbb"))
	f.Add([]byte("\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		host, port, _, err := readSocks(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), &out})
		if err == nil && (host == "" || port == 0 || len(host) > 255) {
			t.Fatalf("%x is %q %d", b, host, port)
		}
	})
}

// FuzzCheckName compares with what a server of HTTP understands.
func FuzzCheckName(f *testing.F) {
	for _, s := range []string{requestFor("good.test"), requestFor("evil.test"), "\x16\x03\x01\x00\x05hello", "SSH-2.0-x\r\n", "GET http://evil.test/ HTTP/1.1\r\n\r\n", "\r\nGET / HTTP/1.0\r\nhost:evil.test\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &recorder{r: bytes.NewReader(b)}
		err := checkName(r, "good.test")
		if !bytes.HasPrefix(b, r.seen.Bytes()) {
			t.Fatal("what was read is not what came")
		}
		if err != nil {
			return
		}
		if host, ok := hostOf(b); ok && host != "" {
			if name, err := netrule.Name(host); err != nil || name != "good.test" {
				t.Fatalf("%q is let through for %q", b, host)
			}
		}
	})
}

// hostOf is the host of a request as net/http reads it.
func hostOf(b []byte) (string, bool) {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return "", false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host, true
}

// BenchmarkAllow copies 64 MiB from a server on this machine to a program inside
// (allow), and to one outside over plain loopback.
func BenchmarkAllow(b *testing.B) {
	w := newNetWorld(b, nil, nil)
	const size = 64 << 20
	zero := make([]byte, 1<<20)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		for range size / len(zero) {
			rw.Write(zero)
		}
	}))
	defer s.Close()
	sb := w.sandbox(b, fmt.Sprintf("good.test:%d", portOf(b, s)))
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envRole+"=drain", envArgs+"="+s.URL)
			if out, err := cmd.Output(); err != nil || string(out) != fmt.Sprint(size) {
				b.Fatal(string(out), err)
			}
		}
	})
	b.Run("allow", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if out := play(b, sb, "user", "drain", fmt.Sprintf("http://good.test:%d/", portOf(b, s))); out != fmt.Sprint(size) {
				b.Fatal(out)
			}
		}
	})
}

func init() {
	roles["drain"] = func() error {
		r, err := (&http.Client{Transport: &http.Transport{}}).Get(os.Getenv(envArgs)) // without a proxy
		if err != nil {
			return err
		}
		defer r.Body.Close()
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Print(n)
		return err
	}
}
