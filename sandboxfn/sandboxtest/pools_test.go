package sandboxtest_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// look answers questions about where it runs: a word, and what it is about.
var look = declare("look", func(ctx context.Context, question string) (string, error) {
	word, about, _ := strings.Cut(question, " ")
	switch word {
	case "env":
		return os.Getenv(about), nil
	case "environs": // of every other process that can be looked into, and the arguments of all
		var all strings.Builder
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		args, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range append(files, args...) {
			if f != fmt.Sprintf("/proc/%d/environ", os.Getpid()) {
				b, _ := os.ReadFile(f)
				all.Write(b)
			}
		}
		return all.String(), nil
	case "find": // files that hold a text
		var found []string
		for _, dir := range []string{"/home", "/tmp", "/run", "/var", "/etc/hosts", "/dev/shm"} {
			filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					if info, err := d.Info(); err == nil && info.Size() < 1<<20 {
						if b, _ := os.ReadFile(path); strings.Contains(string(b), about) {
							found = append(found, path)
						}
					}
				}
				return nil
			})
		}
		return strings.Join(found, " "), nil
	case "read":
		b, err := os.ReadFile(about)
		return string(b), err
	case "append":
		path, text, _ := strings.Cut(about, " ")
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return "", err
		}
		_, err = f.WriteString(text)
		return "", errors.Join(err, f.Close())
	case "stat":
		info, err := os.Stat(about)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v %d %d", info.Mode(), info.Sys().(*syscall.Stat_t).Uid, info.Size()), nil
	case "where":
		dir, err := os.Getwd()
		return fmt.Sprintf("%d %s", os.Getuid(), dir), err
	case "pid": // of the worker, and the sandbox it is in
		return fmt.Sprint(os.Getpid(), " ", os.Getenv("SANDBOX_ID")), nil
	case "panic":
		panic("no more")
	}
	return "", errors.New("what is " + word + "?")
})

func looked(t *testing.T, ctx context.Context, f sandboxfn.Func[string, string], question string) string {
	t.Helper()
	answer, err := f.Call(ctx, question)
	if err != nil {
		t.Errorf("%s: %v", question, err)
	}
	return answer
}

// inBoth runs f with worker processes and with sandboxes.
func inBoth(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Run("process", func(t *testing.T) { f(t, sandboxtest.Process(t)) })
	t.Run("sandbox", func(t *testing.T) { f(t, local(t)) })
}

// A function with Fresh never meets what another call has left.
func TestFresh(t *testing.T) {
	inBoth(t, func(t *testing.T, ctx context.Context) {
		f := look.With(sandboxfn.Options{Fresh: true})
		seen := map[string]bool{}
		for range 3 {
			pid := looked(t, ctx, f, "pid")
			if seen[pid] {
				t.Errorf("two calls ran in %s", pid)
			}
			seen[pid] = true
		}
	})
}

// meeting counts the calls that are in this worker now.
var meeting struct {
	sync.Mutex
	in, most int
	changed  chan struct{}
}

// meet returns when n calls are in the worker at once, with its pid and the most
// that ever were. It panics when told to, after that.
var meet = declare("meet", func(ctx context.Context, n int) (string, error) {
	m := &meeting
	m.Lock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	m.in++
	m.most = max(m.most, m.in)
	close(m.changed)
	m.changed = make(chan struct{})
	for m.most < n {
		changed := m.changed
		m.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		m.Lock()
	}
	m.in--
	defer m.Unlock()
	return fmt.Sprint(os.Getpid(), " ", m.most), nil
})

// As many calls as Concurrency says are in one worker at once, and not more. With a
// second worker, the rest could be shared out, and never be enough in one.
func TestConcurrency(t *testing.T) {
	inBoth(t, func(t *testing.T, ctx context.Context) {
		const n = 8
		f := meet.With(sandboxfn.Options{Concurrency: n, Workers: sandboxfn.Workers{Max: 1}, Timeout: time.Minute})
		answers := make([]string, 2*n)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				var err error
				if answers[i], err = f.Call(ctx, n); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		workers := map[string]int{}
		for _, a := range answers {
			workers[a]++
		}
		for a := range workers {
			if !strings.HasSuffix(a, fmt.Sprint(" ", n)) {
				t.Errorf("a worker and the calls in it: %s", a)
			}
		}
	})
}

// A panic ends the worker after its other calls; a call that ignores the end of
// its context takes the others with it.
func TestConcurrencyAndFaults(t *testing.T) {
	ctx := sandboxtest.Process(t)
	o := sandboxfn.Options{Concurrency: 3, Grace: 200 * time.Millisecond, Stderr: io.Discard}
	f := obey.With(o)
	first, err := f.Call(ctx, order{What: "pid"})
	if err != nil {
		t.Fatal(err)
	}
	slow := f.Spawn(ctx, order{What: "sleep", For: 500 * time.Millisecond})
	if _, err := f.Call(ctx, order{What: "panic"}); !errors.Is(err, sandboxfn.ErrPanic) {
		t.Errorf("got %v", err)
	}
	next, err := f.Call(ctx, order{What: "pid"})
	if err != nil || next == first {
		t.Errorf("after a panic: worker %s and then %s, %v", first, next, err)
	}
	if _, err := slow.Wait(ctx); err != nil {
		t.Errorf("a call beside one that panicked: %v", err)
	}
	other := f.Spawn(ctx, order{What: "sleep", For: time.Minute})
	cctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := f.Call(cctx, order{What: "sleep", For: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := other.Wait(ctx); !errors.Is(err, sandboxfn.ErrWorkerLost) {
		t.Errorf("a call beside one that was killed: %v", err)
	}
}

// localClient is a client of the local provider and its state directory.
func localClient(t testing.TB) (context.Context, *sandboxfn.Client, string) {
	t.Helper()
	dir := t.TempDir()
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return sandboxfn.WithClient(t.Context(), c), c, dir
}

// The program goes to a machine once.
func TestProgramIsSentOnce(t *testing.T) {
	local(t) // or skip
	ctx, c, dir := localClient(t)
	defer c.Close()
	kept := func() (all []string) {
		t.Helper()
		list, err := os.ReadDir(filepath.Join(dir, "local", "bin"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if info, err := e.Info(); err == nil && !strings.HasPrefix(e.Name(), ".") {
				st := info.Sys().(*syscall.Stat_t)
				all = append(all, fmt.Sprint(e.Name(), st.Ino, st.Ctim, info.Size()))
			}
		}
		return all
	}
	f := look.With(sandboxfn.Options{Fresh: true})
	looked(t, ctx, f, "pid")
	first := kept()
	for range 2 {
		looked(t, ctx, f, "pid")
	}
	if again := kept(); !slices.Equal(first, again) || len(first) == 0 {
		t.Errorf("kept %v, and then %v", first, again)
	}
}

// BenchmarkWorkerStart measures a call in a new sandbox of a new machine, to which
// the program has to be sent, and the next ones, and reports the ratio of the
// medians.
func BenchmarkWorkerStart(b *testing.B) {
	local(b)
	f := look.With(sandboxfn.Options{Fresh: true})
	var first, later []time.Duration
	timed := func(ctx context.Context, to *[]time.Duration) {
		begin := time.Now()
		if _, err := f.Call(ctx, "pid"); err != nil {
			b.Fatal(err)
		}
		*to = append(*to, time.Since(begin))
	}
	for b.Loop() {
		ctx, c, _ := localClient(b)
		timed(ctx, &first)
		for range 3 {
			timed(ctx, &later)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(first)
	slices.Sort(later)
	b.ReportMetric(float64(later[len(later)/2])/float64(first[len(first)/2]), "x-first")
	b.ReportMetric(0, "ns/op")
}

func TestUserAndWorkDir(t *testing.T) {
	ctx := local(t)
	if got := looked(t, ctx, look, "where"); got != "1000 /home/user" {
		t.Errorf("by default: %q", got)
	}
	if got := looked(t, ctx, look.With(sandboxfn.Options{WorkDir: "/tmp"}), "where"); got != "1000 /tmp" {
		t.Errorf("WorkDir: %q", got)
	}
	f := look.With(sandboxfn.Options{User: "root"})
	if got, err := f.Call(ctx, "where"); got != "0 /root" && !errors.Is(err, sandboxfn.ErrUserNotAvailable) {
		t.Errorf("User: %q, %v", got, err)
	}
}

// What a provider cannot do is said by its name, and nothing is made.
func TestLacking(t *testing.T) {
	ctx := local(t)
	for want, o := range map[string]sandboxfn.Options{
		"provider local has no images; import _":      {Image: "alpine:3"},
		"provider local has no GPUs; leave GPU empty": {GPU: "A10:2"},
	} {
		_, err := look.With(o).Call(ctx, "pid")
		e, ok := errors.AsType[*sandboxfn.Error](err)
		if !ok || !errors.Is(err, sandboxfn.ErrNotSupported) || !strings.Contains(e.Error()+"; "+e.Hint(), want) || e.Op != "sandboxtest_test.Look" {
			t.Errorf("got %v, want … %s", err, want)
		}
	}
}

func TestFiles(t *testing.T) {
	ctx := local(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	tree := fstest.MapFS{
		"model/weights.bin":  {Data: big},
		"model/run.sh":       {Data: []byte("#!/bin/sh\necho ran\n"), Mode: 0o555},
		"model/deep/er/note": {Data: []byte("note"), Mode: 0o600},
		"model/empty":        {Data: nil},
		"app.conf":           {Data: []byte("a = 1\n"), Mode: 0o444},
	}
	f := look.With(sandboxfn.Options{Files: []sandboxfn.FileMount{
		{Remote: "/opt/model", FS: tree, Name: "model"},
		{Remote: "/etc/app.conf", FS: tree, Name: "app.conf"},
		{Remote: "/app", FS: tree, Name: "app.conf"},
		{Remote: "/home/user/cfg/app.conf", FS: tree, Name: "app.conf"},
		{Remote: "/tool", FS: tree, Name: "model/run.sh"},
	}})
	for question, want := range map[string]string{
		"read /opt/model/deep/er/note": "note",
		"stat /opt/model/deep/er":      "drwxr-xr-x 1000 60",
		"stat /opt/model/deep/er/note": "-rw-r--r-- 1000 4",
		"stat /opt/model/run.sh":       "-rwxr-xr-x 1000 19",
		"stat /opt/model/empty":        "-rw-r--r-- 1000 0",
		"stat /tool":                   "-rwxr-xr-x 1000 19",
		"read /etc/app.conf":           "a = 1\n",
		"stat /home/user/cfg/app.conf": "-rw-r--r-- 1000 6",
		"read /home/user/cfg/app.conf": "a = 1\n",
		"append /app b\n":              "",
	} {
		if got := looked(t, ctx, f, question); got != want {
			t.Errorf("%s: %q, want %q", question, got, want)
		}
	}
	if got := looked(t, ctx, f, "read /opt/model/weights.bin"); got != string(big) {
		t.Errorf("%d bytes arrived of %d, or others", len(got), len(big))
	}
	// Other content is another sandbox, the same content is not.
	pid := looked(t, ctx, f, "pid")
	same := fstest.MapFS{"other.conf": {Data: []byte("a = 1\n")}}
	again := f.With(sandboxfn.Options{Files: []sandboxfn.FileMount{{Remote: "/app", FS: same, Name: "other.conf"}}})
	if got := looked(t, ctx, again, "pid"); got != pid {
		t.Error("the same content has another sandbox")
	}
	other := f.With(sandboxfn.Options{Files: []sandboxfn.FileMount{{Remote: "/app", FS: fstest.MapFS{"c": {Data: []byte("a = 2\n")}}, Name: "c"}}})
	if got := looked(t, ctx, other, "read /app"); got != "a = 2\n" {
		t.Errorf("other content: %q", got)
	}
	for _, bad := range []struct {
		m    sandboxfn.FileMount
		code sandboxfn.ErrorCode
	}{
		{sandboxfn.FileMount{Remote: "/x", FS: tree, Name: "none"}, "E2011"},
		{sandboxfn.FileMount{Remote: "x", FS: tree, Name: "model"}, "E2011"},
		{sandboxfn.FileMount{Remote: "/x", FS: nil, Name: "model"}, "E2011"},
		{sandboxfn.FileMount{Remote: "/x", FS: tree, Name: "../model"}, "E2011"},
		{sandboxfn.FileMount{Remote: "/x", FS: fstest.MapFS{"p": {Mode: fs.ModeNamedPipe}}, Name: "p"}, "E2011"},
		{sandboxfn.FileMount{Remote: "/usr/x", FS: tree, Name: "model"}, "E9015"},
	} {
		if _, err := look.With(sandboxfn.Options{Files: []sandboxfn.FileMount{bad.m}}).Call(ctx, "pid"); sandboxfn.CodeOf(err) != bad.code || !errors.Is(err, sandboxfn.ErrOption) {
			t.Errorf("%s at %s: %v", bad.m.Name, bad.m.Remote, err)
		}
	}
}

func TestVolumes(t *testing.T) {
	ctx := local(t)
	at := func(path string, readOnly bool) sandboxfn.Func[string, string] {
		return look.With(sandboxfn.Options{Volumes: []sandboxfn.Volume{{Name: "shared", Path: path, ReadOnly: readOnly}}})
	}
	writer, reader := at("/data", false), at("/mnt/in", true)
	looked(t, ctx, writer, "append /data/log one\n")
	looked(t, ctx, at("/home/user/x", false), "append /home/user/x/log two\n")
	if got := looked(t, ctx, reader, "read /mnt/in/log"); got != "one\ntwo\n" {
		t.Errorf("read %q", got)
	}
	if _, err := reader.Call(ctx, "append /mnt/in/log x"); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("a read-only volume: %v", err)
	}
	fresh := writer.With(sandboxfn.Options{Fresh: true})
	looked(t, ctx, fresh, "append /data/log three\n")
	if got := looked(t, ctx, fresh, "read /data/log"); got != "one\ntwo\nthree\n" {
		t.Errorf("in a new sandbox: %q", got)
	}
	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Volumes: []sandboxfn.Volume{{Name: "shared", Path: "/v"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if b, err := sb.FS(ctx).ReadFile("/v/log"); err != nil || string(b) != "one\ntwo\nthree\n" {
		t.Errorf("of a command: %q, %v", b, err)
	}
	for _, vs := range [][]sandboxfn.Volume{
		{{Name: "a/b", Path: "/d"}}, {{Name: "", Path: "/d"}}, {{Name: "..", Path: "/d"}}, {{Name: "a", Path: "d"}}, {{Name: "a", Path: "/"}},
		{{Name: "a", Path: "/d"}, {Name: "b", Path: "/d/"}}, {{Name: "a", Path: "/d"}, {Name: "b", Path: "/d/e"}}, {{Name: "a", Path: "/etc"}},
	} {
		if _, err := look.With(sandboxfn.Options{Volumes: vs}).Call(ctx, "pid"); !errors.Is(err, sandboxfn.ErrOption) {
			t.Errorf("%v: %v", vs, err)
		}
		if _, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Volumes: vs}); !errors.Is(err, sandboxfn.ErrOption) {
			t.Errorf("create, %v: %v", vs, err)
		}
	}
}

// vault is a source of secrets that counts.
type vault struct {
	mu     sync.Mutex
	values map[string]string // guarded by mu
	asked  atomic.Int64
}

func (v *vault) Secret(_ context.Context, name string) (sandboxfn.Secret, error) {
	v.asked.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	if s, ok := v.values[name]; ok {
		return sandboxfn.NewSecret(s), nil
	}
	return sandboxfn.Secret{}, fmt.Errorf("vault: nothing at %s: %w", name, sandboxfn.ErrSecretNotFound)
}

const hidden = "hunter2-8f3a91c7"

// lockedBuffer is written by a logger while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A secret reaches its worker, and can be found nowhere else.
func TestSecrets(t *testing.T) {
	local(t) // or skip
	var logged lockedBuffer
	v := &vault{values: map[string]string{"prod/token": hidden, "OTHER": "other-" + hidden}}
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
		Provider: "local", StateDir: t.TempDir(), Secrets: v,
		Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := sandboxfn.WithClient(t.Context(), c)
	f := look.With(sandboxfn.Options{Secrets: map[string]string{"TOKEN": "prod/token", "OTHER": ""}, Stderr: io.Discard})
	if got := looked(t, ctx, f, "env TOKEN") + " " + looked(t, ctx, f, "env OTHER"); got != hidden+" other-"+hidden {
		t.Errorf("in the environment: %q", got)
	}
	n := v.asked.Load()
	for range 5 {
		looked(t, ctx, f, "pid")
	}
	if again := v.asked.Load(); again != n {
		t.Errorf("a warm worker asks for secrets: %d times, then %d", n, again)
	}
	var outputs []string
	note := func(what string, text string) {
		outputs = append(outputs, what)
		if strings.Contains(text, hidden) {
			t.Errorf("the secret is in %s", what)
		}
	}
	note("the environments of other processes", looked(t, ctx, f, "environs"))
	if got := looked(t, ctx, f, "find "+hidden); got != "" {
		t.Errorf("the secret is in the files %s", got)
	}
	for info, err := range c.List(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		note("the description", fmt.Sprintf("%+v", info))
		sb, err := c.Connect(ctx, info.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		ps, err := sb.Processes(ctx)
		note("the list of processes", fmt.Sprintf("%+v %v", ps, err))
		env, err := sb.Command(ctx, "env").Output()
		note("the environment of a command", fmt.Sprintf("%s %v", env, err))
		sb.Close()
	}
	_, err = f.Call(ctx, "panic")
	note("a panic", fmt.Sprintf("%+v %#v", err, err))
	_, err = f.With(sandboxfn.Options{User: "nobody-here"}).Call(ctx, "pid")
	note("a start that failed", fmt.Sprintf("%+v %#v", err, err))
	v.mu.Lock()
	delete(v.values, "OTHER")
	v.mu.Unlock()
	_, err = f.With(sandboxfn.Options{Env: map[string]string{"A": "b"}}).Call(ctx, "pid")
	note("a missing secret", fmt.Sprintf("%+v %#v", err, err))
	if !errors.Is(err, sandboxfn.ErrSecretNotFound) || !strings.Contains(err.Error(), "sandboxtest_test.Look: secret OTHER") || strings.Contains(err.Error(), "E9015") {
		t.Errorf("a missing secret: %v", err)
	}
	note("the log", logged.String())
	if len(outputs) < 7 || logged.String() == "" {
		t.Errorf("only %v were looked at, with %d bytes of log", outputs, len(logged.String()))
	}
	// A new value reaches the next worker.
	v.mu.Lock()
	v.values["OTHER"], v.values["prod/token"] = "o", "rotated"
	v.mu.Unlock()
	if got := looked(t, ctx, f.With(sandboxfn.Options{Fresh: true}), "env TOKEN"); got != "rotated" {
		t.Errorf("after a change: %q", got)
	}
}

// Without a client's source, secrets are variables of this process.
func TestSecretsOfTheEnvironment(t *testing.T) {
	t.Setenv("SANDBOXTEST_TOKEN", hidden)
	t.Setenv("SANDBOXTEST_EMPTY", "")
	// A function in this process has the environment of this process.
	inHere := look.With(sandboxfn.Options{Secrets: map[string]string{"TOKEN": "SANDBOXTEST_NONE"}})
	if got := looked(t, sandboxtest.InProcess(t), inHere, "env SANDBOXTEST_TOKEN"); got != hidden {
		t.Errorf("in this process: %q", got)
	}
	inBoth(t, func(t *testing.T, ctx context.Context) {
		f := look.With(sandboxfn.Options{Secrets: map[string]string{"TOKEN": "SANDBOXTEST_TOKEN"}})
		if got := looked(t, ctx, f, "env TOKEN"); got != hidden {
			t.Errorf("got %q", got)
		}
		if got := looked(t, ctx, f, "env SANDBOXTEST_TOKEN"); got != "" {
			t.Errorf("the variable itself is there: %q", got)
		}
		for _, missing := range []string{"SANDBOXTEST_EMPTY", "SANDBOXTEST_NONE"} {
			_, err := f.With(sandboxfn.Options{Secrets: map[string]string{"TOKEN": missing}}).Call(ctx, "pid")
			if !errors.Is(err, sandboxfn.ErrSecretNotFound) || !strings.Contains(err.Error(), "secret TOKEN ("+missing+" of the source)") {
				t.Errorf("%s: %v", missing, err)
			}
		}
	})
}

// An option of the environment and a secret cannot have one name.
func TestSecretClash(t *testing.T) {
	ctx := sandboxtest.Process(t)
	f := look.With(sandboxfn.Options{Env: map[string]string{"TOKEN": "a"}, Secrets: map[string]string{"TOKEN": ""}})
	if _, err := f.Call(ctx, "pid"); !errors.Is(err, sandboxfn.ErrOption) || !strings.Contains(err.Error(), "both set TOKEN") {
		t.Errorf("got %v", err)
	}
}

func TestSecretText(t *testing.T) {
	s := sandboxfn.NewSecret(hidden)
	if s.Reveal() != hidden || (sandboxfn.Secret{}).Reveal() != "" {
		t.Errorf("revealed %q", s.Reveal())
	}
	type inner struct{ s sandboxfn.Secret }
	type outer struct {
		S sandboxfn.Secret
		P *sandboxfn.Secret
		L []sandboxfn.Secret
		M map[string]sandboxfn.Secret
		I inner
	}
	all := outer{s, &s, []sandboxfn.Secret{s}, map[string]sandboxfn.Secret{"k": s}, inner{s}}
	var texts []string
	for _, verb := range strings.Split("v s q x X d o b c U e f g p t T w", " ") {
		for _, flag := range []string{"", "+", "#", " ", "-20", "020"} {
			for _, x := range []any{s, &s, all, &all, all.I, all.L, all.M, []any{s}, errors.Join(fmt.Errorf("a %v", s))} {
				texts = append(texts, fmt.Sprintf("%"+flag+verb, x))
			}
		}
	}
	texts = append(texts, fmt.Sprint(s, all), fmt.Sprintln(s), s.String(), s.GoString())
	for _, x := range []any{s, &s, all.S, all.P, all.L, all.M, all} {
		b, err := json.Marshal(x)
		if err != nil {
			t.Errorf("json: %v", err)
		}
		texts = append(texts, string(b))
	}
	text, err := s.MarshalText()
	texts = append(texts, string(text), fmt.Sprint(err))
	var logged, encoded bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(h).Info("m", "s", s, "p", &s, "all", all, slog.Group("g", "s", s))
	}
	err = gob.NewEncoder(&encoded).Encode(struct{ S sandboxfn.Secret }{s})
	texts = append(texts, logged.String(), encoded.String(), fmt.Sprint(err))
	for _, text := range texts {
		for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), hidden[1 : len(hidden)-1], fmt.Sprint([]byte(hidden))} {
			if strings.Contains(text, form) {
				t.Errorf("shown by %q", text)
			}
		}
	}
	for _, want := range []string{fmt.Sprint(s), fmt.Sprintf("%x", s), fmt.Sprintf("%#v", s)} {
		if want != "[redacted]" {
			t.Errorf("printed as %q", want)
		}
	}
	if !slices.Contains(texts, `"[redacted]"`) {
		t.Error("JSON has no [redacted]")
	}
}

var give = declare("give", func(_ context.Context, s sandboxfn.Secret) (int, error) { return len(s.Reveal()), nil })

// A secret cannot be an argument.
func TestSecretDoesNotTravel(t *testing.T) {
	_, err := give.Call(sandboxtest.Process(t), sandboxfn.NewSecret(hidden))
	if sandboxfn.CodeOf(err) != "E9002" || strings.Contains(fmt.Sprintf("%+v", err), hidden) || !strings.Contains(err.Error(), "Secret") {
		t.Errorf("got %v", err)
	}
}
