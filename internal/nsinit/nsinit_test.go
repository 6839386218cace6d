//go:build linux && (amd64 || arm64)

package nsinit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test program is its own pid 1, except that it is not in a namespace: a
// program of calls that need no rights is sent to it, and what it is asked in
// the configuration it does.

func TestMain(m *testing.M) {
	if !Active() {
		os.Exit(m.Run())
	}
	out, err := asked[string(Config())]()
	if err != nil {
		out = "error: " + err.Error()
	}
	if err := Ready([]byte(out)); err != nil {
		os.Exit(3)
	}
	os.Exit(0)
}

var asked = map[string]func() (string, error){
	"nothing": func() (string, error) { return "done", nil },
	"env":     func() (string, error) { return strings.Join(os.Environ(), " "), nil },
	"privs":   func() (string, error) { return eachThread("NoNewPrivs") },
	"comm":    func() (string, error) { return eachThread("Name") },
	"files": func() (string, error) {
		f := os.NewFile(uintptr(FD("given")), "given")
		b, err := io.ReadAll(f)
		if FD("missing") != -1 {
			return "", errors.New("a file that was not passed")
		}
		open := ""
		for fd := 3; fd < 512; fd++ {
			flags, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
			if e == 0 && flags&syscall.FD_CLOEXEC == 0 {
				open += " " + strconv.Itoa(fd)
			}
		}
		if _, e := os.Stat("/proc/self/fd/5"); e == nil {
			open += " stray"
		}
		return string(b) + open, err
	},
	"kept": func() (string, error) { return fmt.Sprint(FD("kept") >= 3, " ", FD("absent") >= 0), nil },
	"signals": func() (string, error) {
		runtime.LockOSThread()
		pid, tid := syscall.Getpid(), syscall.Gettid()
		for sig := syscall.Signal(1); sig < 32; sig++ {
			switch sig {
			case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
				continue
			}
			for range 3 {
				syscall.Kill(pid, sig)
				syscall.Tgkill(pid, tid, sig)
			}
		}
		time.Sleep(20 * time.Millisecond)
		// A fault of one's own is still a panic, and children are as ever.
		out := fmt.Sprint(nilFault())
		err := exec.Command("/bin/sh", "-c", "kill -SEGV $$").Run()
		err2 := exec.Command("/bin/sh", "-c", "kill -TERM $$").Run()
		return fmt.Sprint(out, "; ", err, "; ", err2), nil
	},
}

func nilFault() (err any) {
	defer func() { err = recover() }()
	var p *int
	return *p
}

// eachThread returns the distinct values of a field in the status of threads.
func eachThread(field string) (string, error) {
	files, err := filepath.Glob("/proc/self/task/*/status")
	seen := map[string]bool{}
	out := ""
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		_, rest, _ := strings.Cut(string(b), field+":")
		v, _, _ := strings.Cut(rest, "\n")
		if v = strings.TrimSpace(v); !seen[v] {
			seen[v] = true
			out += v + " "
		}
	}
	if len(files) < 3 {
		return "", fmt.Errorf("only %d threads", len(files))
	}
	return out, err
}

// child starts the test program with files after the control socket.
func child(t *testing.T, files ...*os.File) (control *os.File, cmd *exec.Cmd) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	control, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	t.Cleanup(func() { control.Close() })
	defer theirs.Close()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = []string{EnvSocket + "=3", "LEFT=over"}
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return control, cmd
}

func reply(t *testing.T, control *os.File) Reply {
	t.Helper()
	h := make([]byte, HeaderSize)
	if _, err := io.ReadFull(control, h); err != nil {
		t.Fatal(err)
	}
	n, ok := ReplySize(h)
	if !ok {
		t.Fatalf("header %x", h)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(control, body); err != nil {
		t.Fatal(err)
	}
	r, ok := DecodeReply(body)
	if !ok {
		t.Fatalf("reply %x", body)
	}
	return r
}

func ask(t *testing.T, p *Program, files ...*os.File) Reply {
	t.Helper()
	control, cmd := child(t, files...)
	if _, err := control.Write(p.Encode()); err != nil {
		t.Fatal(err)
	}
	r := reply(t, control)
	err := cmd.Wait()
	if r.Step == "" && err != nil {
		t.Error(err)
	}
	if r.Step != "" && err == nil {
		t.Error("a failed construction ended with status 0")
	}
	return r
}

func TestProgram(t *testing.T) {
	given, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	given.WriteString("given text")
	given.Seek(0, 0)
	dir := t.TempDir()
	privs := Call{Name: "privs", Nr: syscall.SYS_PRCTL, Args: []Arg{Int(38), Int(1)}, All: true} // PR_SET_NO_NEW_PRIVS
	for _, c := range []struct {
		name  string
		calls []Call
		ask   string
		want  Reply
	}{
		{"empty", nil, "nothing", Reply{Ready: []byte("done")}},
		{"environment", nil, "env", Reply{Ready: []byte("LEFT=over")}},
		{"files", []Call{{Name: "close", Nr: CloseInherited}}, "files", Reply{Ready: []byte("given text")}},
		{"files far up", []Call{
			{Name: "dup3", Nr: syscall.SYS_DUP3, Args: []Arg{Int(5), Int(maxDense), Int(0)}},
			{Name: "dup3", Nr: syscall.SYS_DUP3, Args: []Arg{Int(5), Int(500), Int(0)}},
			{Name: "close", Nr: CloseInherited},
		}, "files", Reply{Ready: []byte("given text")}},
		{"registers", []Call{
			{Name: "make", Nr: syscall.SYS_OPENAT, Args: []Arg{Int(-100), Str(dir + "/f"), Int(syscall.O_CREAT | syscall.O_RDWR), Int(0o600)}, Store: 7},
			{Name: "write", Nr: syscall.SYS_WRITE, Args: []Arg{Reg(7), Bytes([]byte("text")), Int(4)}},
			{Name: "seek", Nr: syscall.SYS_LSEEK, Args: []Arg{Reg(7), Int(0), Int(0)}},
			{Name: "read", Nr: syscall.SYS_READ, Args: []Arg{Reg(7), Out(8), Int(8)}, Expect: []byte("xt\x00"), ExpectAt: 2},
			{Name: "close", Nr: syscall.SYS_CLOSE, Args: []Arg{Reg(7)}},
		}, "nothing", Reply{Ready: []byte("done")}},
		{"unexpected", []Call{{Name: "where", Nr: syscall.SYS_GETCWD, Args: []Arg{Out(4096), Int(4096)}, Expect: []byte("/\x00")}},
			"nothing", Reply{Step: "where", Errno: syscall.EINVAL}},
		{"failure", []Call{{Name: "first", Nr: syscall.SYS_GETPID}, {Name: "second", Nr: syscall.SYS_CLOSE, Args: []Arg{Int(-1)}}},
			"nothing", Reply{Step: "second", Errno: syscall.EBADF}},
		{"ignored", []Call{{Name: "close", Nr: syscall.SYS_CLOSE, Args: []Arg{Int(-1)}, Ignore: []syscall.Errno{syscall.EPERM, syscall.EBADF}}},
			"nothing", Reply{Ready: []byte("done")}},
		{"not zero", []Call{{Name: "pid", Nr: syscall.SYS_GETPID, Zero: true}}, "nothing", Reply{Step: "pid", Errno: syscall.EINVAL}},
		{"every thread", []Call{privs}, "privs", Reply{Ready: []byte("1 ")}},
		{"every thread by name", []Call{
			{Name: "name", Nr: syscall.SYS_PRCTL, Args: []Arg{Int(15), Str("renamed")}, All: true}, // PR_SET_NAME
			privs, {Name: "other", Nr: syscall.SYS_GETPID},
		}, "comm", Reply{Ready: []byte("renamed ")}},
		{"failure in every thread", []Call{privs, {Name: "bad", Nr: syscall.SYS_PRCTL, Args: []Arg{Int(-1)}, All: true}},
			"nothing", Reply{Step: "bad", Errno: syscall.EINVAL}},
		{"ignored in other threads", []Call{
			{Name: "close", Nr: syscall.SYS_CLOSE, Args: []Arg{Int(5)}, All: true, Ignore: []syscall.Errno{syscall.EBADF}}, privs,
		}, "privs", Reply{Ready: []byte("1 ")}},
		{"failure in other threads", []Call{{Name: "close", Nr: syscall.SYS_CLOSE, Args: []Arg{Int(5)}, All: true}, privs},
			"nothing", Reply{Step: "close", Errno: syscall.EBADF}},
		{"repeated", []Call{{Name: "close", Nr: syscall.SYS_FCNTL, Args: []Arg{Int(0), Int(syscall.F_GETFD)}, Count: 4}}, // up to F_SETFL
			"nothing", Reply{Ready: []byte("done")}},
		{"signals", []Call{{Name: "deafen", Nr: Deafen}}, "signals",
			Reply{Ready: []byte("runtime error: invalid memory address or nil pointer dereference; signal: segmentation fault; signal: terminated")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			stray, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer stray.Close()
			if _, err := given.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			r := ask(t, &Program{Calls: c.calls, Files: []File{{"given", 4}}, Config: []byte(c.ask)}, given, stray)
			if r.Step != c.want.Step || r.Errno != c.want.Errno || string(r.Ready) != string(c.want.Ready) {
				t.Errorf("got %q %v %q, want %q %v %q", r.Step, r.Errno, r.Ready, c.want.Step, c.want.Errno, c.want.Ready)
			}
		})
	}
}

func TestSent(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	given, err := os.CreateTemp(t.TempDir(), "")
	if err == nil {
		_, err = given.WriteAt([]byte("content"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := Program{Config: []byte("files"), Files: []File{{"given", SentFile(1)}},
		Calls: []Call{{Name: "write", Nr: syscall.SYS_WRITE, Args: []Arg{Sent(0), Str("sent"), Int(4)}}, {Name: "close", Nr: syscall.SYS_CLOSE, Args: []Arg{Sent(0)}}}}
	control, cmd := child(t)
	b := p.Encode()
	if err := syscall.Sendmsg(int(control.Fd()), b[:HeaderSize], syscall.UnixRights(int(f.Fd()), int(given.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Write(b[HeaderSize:]); err != nil {
		t.Fatal(err)
	}
	if r := reply(t, control); r.Step != "" || !strings.HasPrefix(string(r.Ready), "content") {
		t.Errorf("%q %+v", r.Ready, r)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(f.Name()); string(b) != "sent" {
		t.Errorf("%q", b)
	}
}

// TestFiles has descriptors that a program made sent and kept, and those left
// out that it could not make.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(name string, store, flags int) Call {
		return Call{Name: name, Nr: syscall.SYS_OPENAT, Args: []Arg{Int(-100), Str(dir + "/" + name), Int(flags | syscall.O_RDWR | syscall.O_CLOEXEC), Int(0o600)},
			Store: store, Ignore: []syscall.Errno{syscall.ENOENT}}
	}
	p := Program{Config: []byte("kept"), Calls: []Call{
		open("there", 1, syscall.O_CREAT), open("absent", 2, 0),
		{Name: "send", Nr: SendFile, Args: []Arg{Str("one"), Reg(1)}},
		{Name: "send", Nr: SendFile, Args: []Arg{Str("two"), Reg(2)}},
		{Name: "send", Nr: SendFile, Args: []Arg{Str("three"), Reg(1), Reg(2)}},
		{Name: "send", Nr: SendFile, Args: []Arg{Str(strings.Repeat("n", maxName-1)), Reg(1), Reg(1)}},
		{Name: "close inherited", Nr: CloseInherited},
		{Name: "keep", Nr: KeepFile, Args: []Arg{Str("kept"), Reg(1)}},
		{Name: "keep", Nr: KeepFile, Args: []Arg{Str("absent"), Reg(2)}},
	}}
	control, cmd := child(t)
	if _, err := control.Write(p.Encode()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", strings.Repeat("n", maxName-1)} {
		h, oob := make([]byte, HeaderSize), make([]byte, 64)
		n, oobn, _, _, err := syscall.Recvmsg(int(control.Fd()), h, oob, syscall.MSG_CMSG_CLOEXEC)
		size, ok := FileSize(h[:n])
		if err != nil || !ok {
			t.Fatalf("header %x, %v", h[:n], err)
		}
		name := make([]byte, size)
		if _, err := io.ReadFull(control, name); err != nil || string(name) != want {
			t.Fatalf("%q, %v", name, err)
		}
		msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			t.Fatal(msgs, err)
		}
		fds, err := syscall.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			t.Fatal(fds, err)
		}
		f := os.NewFile(uintptr(fds[0]), "sent")
		if _, err := f.WriteString("x"); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	if r := reply(t, control); r.Step != "" || string(r.Ready) != "true false" {
		t.Errorf("%+v", r)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, c := range []Call{
		{Name: "bad", Nr: SendFile}, {Name: "bad", Nr: SendFile, Args: []Arg{Str("x"), Int(1)}},
		{Name: "bad", Nr: KeepFile, Args: []Arg{Str(strings.Repeat("n", maxName)), Reg(1)}},
	} {
		if r := ask(t, &Program{Calls: []Call{c}}); r.Step != "bad" || r.Errno != syscall.EINVAL {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// TestClientGone closes the control socket at every point before the program
// is complete: nothing may run, and nothing may stay.
func TestClientGone(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	p := Program{Calls: []Call{{Name: "mark", Nr: syscall.SYS_MKDIRAT, Args: []Arg{Int(-100), Str(mark), Int(0o700)}}}}
	b := p.Encode()
	for _, n := range []int{0, 3, HeaderSize, HeaderSize + 5, len(b) - 1} {
		control, cmd := child(t)
		control.Write(b[:n])
		control.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a part of a program was executed")
	}
}

func TestMalformed(t *testing.T) {
	for _, b := range [][]byte{
		bytes.Repeat([]byte("x"), 100),
		{0x53, 0x4e, 0x49, 0x32, 0xff, 0xff, 0xff, 0x7f},
		append((&Program{}).Encode()[:4], 4, 0, 0, 0, 1, 2, 3, 4),
		(&Program{Calls: []Call{{Nr: 1, Args: []Arg{Sent(0)}}}}).Encode(),
		(&Program{Files: []File{{"never sent", SentFile(0)}}}).Encode(),
	} {
		control, cmd := child(t)
		cmd.Stderr = nil
		control.Write(b)
		control.Close()
		err := cmd.Wait()
		if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != 2 {
			t.Errorf("%x: %v, want status 2", b[:8], err)
		}
	}
}

// TestStray sets the variable where there is no client.
func TestStray(t *testing.T) {
	for _, v := range []string{"", "0", "2", "3", "77", "x", "-1", "9999999999999"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{EnvSocket + "=" + v}
		out, err := cmd.CombinedOutput()
		ee, ok := errors.AsType[*exec.ExitError](err)
		if !ok || ee.ExitCode() != 2 || !strings.Contains(string(out), "unset it") {
			t.Errorf("%q: %v %s", v, err, out)
		}
	}
}

// TestWorkerDescriptors checks that the descriptors of a worker are kept from
// what its initialisers start.
func TestWorkerDescriptors(t *testing.T) {
	if os.Getenv("NSINIT_TEST_WORKER") != "" {
		out, _ := exec.Command("/bin/sh", "-c", "readlink /proc/$$/fd/3 /proc/$$/fd/4").Output()
		fmt.Printf("[%s]", out)
		os.Exit(0)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWorkerDescriptors$")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd.ExtraFiles = []*os.File{r, w}
	cmd.Env = append(os.Environ(), "NSINIT_TEST_WORKER=1", "SANDBOX_WORKER_FD=3", "SANDBOX_WORKER_COUNTER_FD=4")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "[]") {
		t.Errorf("%s %v", out, err)
	}
}

// TestFirst keeps the package at the beginning of the order of initialisation:
// what comes before it runs outside of the sandbox.
func TestFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to build a large program with")
	}
	exe := filepath.Join(t.TempDir(), "large")
	if out, err := exec.Command(goTool, "build", "-buildvcs=false", "-o", exe, "./testdata/large").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(exe)
	cmd.Env = []string{"GODEBUG=inittrace=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var before []string
	found := false
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "init" {
			continue
		}
		if strings.HasSuffix(f[1], "/internal/nsinit") {
			found = true
			break
		}
		before = append(before, f[1])
	}
	if !found || len(before) > 20 {
		t.Fatalf("%d packages are initialised before (found: %v): %q", len(before), found, before)
	}
	t.Logf("%d packages are initialised before: %q", len(before), before)
	for _, name := range before {
		if name == "golang.org/x/net/dns/dnsmessage" { // imports errors alone, and makes errors and tables
			continue
		}
		if name == "os" || name == "net" || strings.Contains(name, ".") {
			t.Errorf("%s is initialised before", name)
		}
	}
}

func FuzzProgram(f *testing.F) {
	p := Program{
		Calls: []Call{
			{Name: "a", Nr: 1, Args: []Arg{Int(1), Str("x"), Out(8), Reg(2), Sent(0)}, Store: 3, Ignore: []syscall.Errno{1, 2}, Expect: []byte("y"), ExpectAt: 1},
			{Name: "b", Nr: 2, Args: []Arg{Int(0), Int(1), Filter(make([]byte, 16))}, All: true, Count: 3, Zero: true},
		},
		Files: []File{{"f", 5}}, Config: []byte("config"), Probe: true,
	}
	f.Add(p.Encode()[HeaderSize:], 1)
	f.Add((&Program{}).Encode()[HeaderSize:], 0)
	f.Fuzz(func(t *testing.T, b []byte, fds int) {
		if !checkProgram(b, fds) {
			return
		}
		// What is approved can be read without a check.
		var m machine
		m.readFiles(b)
		if len(m.files) > maxFiles || len(m.config) > len(b) {
			t.Fatal("more than there is")
		}
	})
}

func FuzzReply(f *testing.F) {
	r := Reply{Step: "mount", Errno: 13, Ready: []byte("x")}
	f.Add(r.encode()[HeaderSize:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := DecodeReply(b)
		if ok && !bytes.Equal(r.encode()[HeaderSize:], b) {
			t.Fatalf("%x decodes to %+v", b, r)
		}
	})
}

func FuzzFileSize(f *testing.F) {
	f.Add([]byte{0x53, 0x4e, 0x49, 0x46, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, h []byte) {
		n, ok := FileSize(h)
		if _, reply := ReplySize(h); ok && (n < 0 || n > maxName || reply) {
			t.Fatalf("%x: %d", h, n)
		}
	})
}

func FuzzMountLine(f *testing.F) {
	f.Add([]byte(`61 60 254:0 / /a\040b rw,noexec,relatime shared:1 - ext4 /dev/vda rw`))
	f.Fuzz(func(t *testing.T, b []byte) { mountLine(b) })
}

func TestMountLine(t *testing.T) {
	point, flags, ok := mountLine([]byte(`61 60 254:0 / /a\040b rw,nodev,noexec,relatime shared:1 - ext4 /dev/vda rw`))
	if point != "/a b" || flags != syscall.MS_NOEXEC|syscall.MS_RELATIME || !ok {
		t.Error(point, flags, ok)
	}
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/usr", "/usr", true}, {"/usr/local", "/usr", true}, {"/usrlocal", "/usr", false}, {"/", "/usr", false}} {
		if got := below(c.path, c.dir); got != c.want {
			t.Errorf("below(%q, %q) = %v", c.path, c.dir, got)
		}
	}
}
