//go:build linux

package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// TestRecordings sends the requests of recorded sessions of envd 0.6.13 to our
// server and compares the answers. Whatever differs has a row in differences,
// and every row has to be true.
func TestRecordings(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the recordings act as several users, which takes root")
	}
	files, err := filepath.Glob("testdata/recordings/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	if inNamespace(t, "TestRecordings") {
		return
	}
	recordedHost(t)
	seen := map[place]bool{}
	for _, f := range files {
		rec := loadRecording(t, f)
		t.Run(rec.Scenario, func(t *testing.T) {
			p := newReplay(t, rec)
			p.run()
			for i := range rec.Exchanges {
				at := place{rec.Scenario, i}
				seen[at] = true
				p.compare(i, differenceAt(at))
			}
		})
	}
	for _, d := range differences {
		for _, at := range d.at {
			if !seen[at] {
				t.Errorf("difference %q names %v, which is not recorded", d.name, at)
			}
		}
	}
}

// recordedHost makes this name space look like the host of the recordings.
func recordedHost(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	passwd, err := os.ReadFile("/etc/passwd")
	must(err)
	group, err := os.ReadFile("/etc/group")
	must(err)
	must(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	for _, dir := range []string{"/home", "/root", "/tmp"} {
		must(syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	must(os.Chmod("/tmp", 0o1777))
	must(os.Chmod("/root", 0o700))
	must(os.Mkdir("/home/user", 0o755))
	must(os.Chown("/home/user", 1000, 1000))
	for path, content := range map[string]string{
		"/etc/passwd": withoutID(string(passwd)) + "user:x:1000:1000::/home/user:/bin/bash\n",
		"/etc/group":  withoutID(string(group)) + "user:x:1000:\n",
	} {
		temp := "/tmp/" + filepath.Base(path)
		must(os.WriteFile(temp, []byte(content), 0o644))
		must(syscall.Mount(temp, path, "", syscall.MS_BIND, ""))
	}
	must(syscall.Sethostname([]byte("sandbox"))) // prompts show it
	syscall.Umask(0o022)
}

// withoutID drops the lines of whoever has the number 1000 or the name user.
func withoutID(file string) string {
	var out strings.Builder
	for line := range strings.Lines(file) {
		f := strings.Split(line, ":")
		if f[0] != "user" && (len(f) < 3 || f[2] != "1000") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// replay is one recorded session being played against our server.
type replay struct {
	t       *testing.T
	rec     *recording
	rig     *rig
	client  *http.Client
	began   time.Time
	mu      sync.Mutex
	pids    map[uint32]uint32 // ours by the recorded ones
	answers []*replayed
}

// replayed is our answer so far.
type replayed struct {
	status int
	header http.Header
	mu     sync.Mutex
	raw    []byte
	done   chan struct{}
}

func newReplay(t *testing.T, rec *recording) *replay {
	p := &replay{t: t, rec: rec, pids: map[uint32]uint32{}}
	p.rig = newRig(t, func(o *Options) {
		o.Token, o.AllowNoToken = rec.AccessToken, true
		o.DefaultUser, o.DefaultWorkDir = "user", ""
		o.CanSwitchUser, o.Pid1 = true, true
		o.Env = map[string]string{"E2B_SANDBOX": "false"}
	})
	p.client = &http.Client{Transport: &http.Transport{
		DialContext:        p.rig.http.Transport.(withToken).next.(*http.Transport).DialContext,
		DisableCompression: true,
		DisableKeepAlives:  true,
	}}
	for _, dir := range []string{"/home/user", "/root"} {
		left, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range left {
			if err := os.RemoveAll(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range rec.Exchanges {
		p.answers = append(p.answers, &replayed{done: make(chan struct{})})
	}
	return p
}

// run plays the session: an exchange begins when those that had ended before
// it have ended here too, and those that were under way have come as far.
func (p *replay) run() {
	for _, step := range p.rec.Setup {
		p.setup(step)
	}
	p.began = time.Now()
	var wg sync.WaitGroup
	for i, e := range p.rec.Exchanges {
		for j := range i {
			p.await(j, e.Timing.StartMs)
		}
		wg.Go(func() {
			defer close(p.answers[i].done)
			p.send(i)
		})
	}
	wg.Wait()
}

// setup runs "as NAME: script".
func (p *replay) setup(step string) {
	who, script, ok := strings.Cut(step, ": ")
	if !ok {
		p.t.Fatalf("setup %q", step)
	}
	cmd := exec.Command("/bin/bash", "-c", script)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/bin:/bin", "TZ=UTC", "LC_ALL=C.UTF-8"}
	cmd.Dir = "/root"
	if who == "as user" {
		cmd.Env[0], cmd.Dir = "HOME=/home/user", "/home/user"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	}
	// The server collects all children of this process, so the status is lost.
	out, _ := cmd.CombinedOutput()
	if len(out) > 0 {
		p.t.Errorf("setup %q says %s", step, out)
	}
}

// await waits until exchange j is where it was at ms in the recording.
func (p *replay) await(j int, ms float64) {
	e, a := p.rec.Exchanges[j], p.answers[j]
	if e.Timing.EndMs <= ms {
		<-a.done
		// Pauses between exchanges count, but the longest teach nothing.
		pause := time.Duration(min(ms-e.Timing.EndMs, 1500)) * time.Millisecond
		if next := j + 1; next < len(p.rec.Exchanges) && p.rec.Exchanges[next].Timing.StartMs == ms {
			time.Sleep(pause)
		}
		return
	}
	want := 0
	if e.Response != nil {
		for _, f := range e.Response.Frames {
			if f.AtMs < ms {
				want++
			}
		}
	}
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) {
		a.mu.Lock()
		n := envelopes(a.raw)
		a.mu.Unlock()
		if n >= min(want, 2) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// envelopes is how many there are.
func envelopes(raw []byte) (n int) {
	for {
		_, _, rest, ok := cutEnvelope(raw)
		if !ok {
			return n
		}
		raw = rest
		n++
	}
}

func (p *replay) send(i int) {
	e, a := p.rec.Exchanges[i], p.answers[i]
	began, took := time.Now(), time.Duration(e.Timing.EndMs-e.Timing.StartMs)*time.Millisecond
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	payload := p.withOurPids(e)
	req, err := http.NewRequestWithContext(ctx, e.Method, "http://localhost"+e.Path, bytes.NewReader(payload))
	if err != nil {
		p.t.Error(err)
		return
	}
	req.Header = header(e.RequestHeaders)
	if req.Header.Get("Transfer-Encoding") != "" {
		req.ContentLength = -1
	}
	req.Header.Del("Content-Length")
	req.Header.Del("Transfer-Encoding")
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Errorf("exchange %d: %v", i, err)
		return
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	leaves := strings.Contains(e.OrderNotes, "the client closed the connection")
	if leaves {
		defer time.AfterFunc(5*time.Second+took, cancel).Stop() // at the latest
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		a.mu.Lock()
		a.raw = append(a.raw, buf[:n]...)
		p.learnPid(i, a.raw)
		whole := e.Response != nil && envelopes(a.raw) >= len(e.Response.Frames)
		a.mu.Unlock()
		if leaves && whole {
			leaves = false
			defer time.AfterFunc(time.Until(began.Add(took)), cancel).Stop()
		}
		if err != nil {
			if err != io.EOF && ctx.Err() == nil {
				p.t.Errorf("exchange %d: body: %v", i, err)
			}
			return
		}
	}
}

// learnPid notes which of our processes stands for the recorded one.
func (p *replay) learnPid(i int, raw []byte) {
	e := p.rec.Exchanges[i]
	if !strings.HasSuffix(e.Path, "/Start") || e.Response == nil || len(e.Response.Frames) == 0 {
		return
	}
	ours, theirs := startPid(e.Path, raw), startPid(e.Path, e.Response.bytes())
	if ours != 0 && theirs != 0 {
		p.mu.Lock()
		p.pids[theirs] = ours
		p.mu.Unlock()
	}
}

// startPid is the pid in the first envelope of a stream.
func startPid(path string, raw []byte) uint32 {
	flags, payload, _, ok := cutEnvelope(raw)
	if !ok || flags&2 != 0 {
		return 0
	}
	if flags&1 != 0 {
		payload = gunzip(payload)
	}
	var v any
	if json.Unmarshal(payload, &v) != nil {
		v = decodeProto(path, true, payload)
	}
	m, _ := v.(map[string]any)
	event, _ := m["event"].(map[string]any)
	start, _ := event["start"].(map[string]any)
	pid, _ := start["pid"].(float64)
	return uint32(pid)
}

// withOurPids is the recorded request with our process ids in it.
func (p *replay) withOurPids(e *exchange) []byte {
	raw := e.Request.bytes()
	if !strings.HasPrefix(e.Path, "/process.Process/") || e.Request == nil {
		return raw
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	change := p.jsonWithOurPids
	contentType := header(e.RequestHeaders).Get("Content-Type")
	if strings.HasSuffix(contentType, "proto") {
		change = func(b []byte) []byte { return p.protoWithOurPids(e.Path, b) }
	}
	if !strings.HasPrefix(contentType, "application/connect") {
		return change(raw)
	}
	var out []byte
	for {
		flags, payload, rest, ok := cutEnvelope(raw)
		if !ok || flags != 0 {
			return append(out, raw...)
		}
		payload = change(payload)
		out = binary.BigEndian.AppendUint32(append(out, flags), uint32(len(payload)))
		out = append(out, payload...)
		raw = rest
	}
}

func (p *replay) jsonWithOurPids(b []byte) []byte {
	for theirs, ours := range p.pids {
		text := fmt.Appendf(nil, `"pid":%d}`, theirs)
		if bytes.Contains(b, text) {
			return bytes.ReplaceAll(b, text, fmt.Appendf(nil, `"pid":%d}`, ours))
		}
	}
	return b
}

func (p *replay) protoWithOurPids(path string, b []byte) []byte {
	type selecting interface{ GetProcess() *pb.ProcessSelector }
	var m proto.Message
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "Connect":
		m = &pb.ConnectRequest{}
	case "SendInput":
		m = &pb.SendInputRequest{}
	case "SendSignal":
		m = &pb.SendSignalRequest{}
	case "CloseStdin":
		m = &pb.CloseStdinRequest{}
	case "Update":
		m = &pb.UpdateRequest{}
	case "StreamInput":
		m = &pb.StreamInputRequest{}
	default:
		return b
	}
	if proto.Unmarshal(b, m) != nil {
		return b
	}
	names, ok := m.(selecting)
	if in, streamed := m.(*pb.StreamInputRequest); streamed {
		names, ok = in.GetStart(), true
	}
	if !ok {
		return b
	}
	sel, ok := names.GetProcess().GetSelector().(*pb.ProcessSelector_Pid)
	if !ok || p.pids[sel.Pid] == 0 {
		return b
	}
	sel.Pid = p.pids[sel.Pid]
	out, err := proto.Marshal(m)
	if err != nil {
		p.t.Error(err)
	}
	return out
}

// compare checks that exchange i differs from the recording just where row says.
func (p *replay) compare(i int, row *difference) {
	e, a := p.rec.Exchanges[i], p.answers[i]
	if e.Status == nil || expiredSince(e.Path) {
		return
	}
	got, want := meaning(e.Path, a.status, a.header, a.raw), p.rec.recorded(i)
	p.rec.mask(i, got, want)
	hostFacts(got, want)
	if p.rec.Scenario == "process-environment" {
		// The order of variables has no meaning.
		for _, a := range []answer{got, want} {
			a["output stdout"] = strings.Join(slices.Sorted(strings.Lines(a["output stdout"])), "")
		}
	}
	if e.Response != nil && e.Response.Cut != nil {
		// What is left out was counted by whoever cut it.
		delete(want, "trailing")
		for _, k := range []string{"output stdout", "end", "end/error/code"} {
			delete(got, k)
			delete(want, k)
		}
	}
	if strings.Contains(e.OrderNotes, "the client closed the connection") {
		delete(got, "trailing")
	}
	diff := differing(got, want)
	switch {
	case row == nil && len(diff) > 0:
		p.t.Errorf("exchange %d (%s %s) differs in %q%s", i, e.Method, e.Path, diff, details(got, want, diff))
	case row != nil && len(diff) == 0:
		p.t.Errorf("exchange %d does not differ, though %q says so", i, row.name)
	case row != nil:
		for _, f := range diff {
			if !slices.ContainsFunc(row.in, func(in string) bool { return f == in || strings.HasPrefix(f, in+"/") }) {
				p.t.Errorf("exchange %d (%s %s) differs in %q too, which %q does not explain%s", i, e.Method, e.Path, f, row.name, details(got, want, diff))
			}
		}
	}
}

// hostFacts takes out what depends on the machine though the recordings do not
// call it volatile: sizes and times of what lies outside the home directories.
func hostFacts(answers ...answer) {
	for _, a := range answers {
		for k, path := range a {
			entry, ok := strings.CutSuffix(k, "/path")
			if ok && !strings.HasPrefix(path, "/home/user/") && !strings.HasPrefix(path, "/tmp/") {
				for _, fact := range []string{"/size", "/modifiedTime"} {
					delete(a, entry+fact)
				}
			}
		}
	}
}

// expiredSince reports whether the signature of a recorded address was good
// when it was recorded and is not any more.
func expiredSince(path string) bool {
	_, query, _ := strings.Cut(path, "?")
	q, err := url.ParseQuery(query)
	expiry, err2 := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
	// The one that was expired already ends in zeros.
	return err == nil && err2 == nil && expiry != 1700000000 && expiry < time.Now().Unix()
}

func details(got, want answer, keys []string) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "\n  %s: got %s, want %s", k, short(got[k]), short(want[k]))
	}
	return b.String()
}

func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + "… (" + strconv.Itoa(len(s)) + " bytes, " + base64.RawStdEncoding.EncodeToString([]byte(s[:12])) + ")"
	}
	return strconv.Quote(s)
}
