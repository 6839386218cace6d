//go:build linux

package local

import (
	"strconv"
	"strings"
)

// accounts are the users and groups of a tree: those of the layers and those
// that every sandbox has.
type accounts struct {
	users  []account
	groups []string // lines
	shell  string
}

type account struct {
	name, home, shell, gecos string
	uid, gid                 int
}

// Bounds of what is taken over of files of layers.
const (
	maxAccountFile = 256 << 10
	maxAccounts    = 1000
)

// mergeAccounts reads the accounts of a tree. Lines that are malformed, that stand
// for ids beyond those of a sandbox, and the names that sandboxes give themselves
// are left away.
func mergeAccounts(t *foreignTree) *accounts {
	a := &accounts{shell: "/bin/sh"}
	if t.has("/bin/bash") {
		a.shell = "/bin/bash"
	}
	root := account{name: "root", gecos: "root", home: "/root", shell: a.shell}
	var rest []account
	passwd, _ := t.read("/etc/passwd", maxAccountFile) // none: only ours
	for line := range strings.Lines(string(passwd)) {
		u, ok := parseAccount(strings.TrimSuffix(line, "\n"))
		switch {
		case !ok || u.name == defaultUser || len(rest) >= maxAccounts:
		case u.name == "root":
			if t.has(u.shell) {
				root.shell = u.shell
			}
		default:
			rest = append(rest, u)
		}
	}
	a.users = append([]account{root, {name: defaultUser, gecos: defaultUser, uid: userID, gid: userID, home: "/home/user", shell: a.shell}}, rest...)
	if !a.has("nobody") {
		a.users = append(a.users, account{name: "nobody", gecos: "nobody", uid: 65534, gid: 65534, home: "/nonexistent", shell: "/usr/sbin/nologin"})
	}
	a.mergeGroups(t)
	return a
}

func (a *accounts) mergeGroups(t *foreignTree) {
	a.groups = []string{"root:x:0:", defaultUser + ":x:1000:"}
	taken := map[string]bool{"root": true, defaultUser: true}
	group, _ := t.read("/etc/group", maxAccountFile)
	for line := range strings.Lines(string(group)) {
		line = strings.TrimSuffix(line, "\n")
		f := strings.Split(line, ":")
		if len(f) != 4 || !isAccountName(f[0]) || taken[f[0]] || len(a.groups) > maxAccounts || !isPlain(line) {
			continue
		}
		if _, ok := parseID(f[2]); !ok {
			continue
		}
		taken[f[0]] = true
		a.groups = append(a.groups, line)
	}
	for _, g := range []string{"tty:x:5:", "nogroup:x:65534:"} {
		if name, _, _ := strings.Cut(g, ":"); !taken[name] {
			a.groups = append(a.groups, g)
		}
	}
}

// parseAccount reads a line of passwd(5).
func parseAccount(line string) (account, bool) {
	f := strings.Split(line, ":")
	if len(f) != 7 || !isAccountName(f[0]) || !isPlain(line) {
		return account{}, false
	}
	uid, ok1 := parseID(f[2])
	gid, ok2 := parseID(f[3])
	return account{name: f[0], uid: uid, gid: gid, gecos: f[4], home: f[5], shell: f[6]}, ok1 && ok2 && strings.HasPrefix(f[5], "/")
}

func parseID(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n < blockSize
}

func isAccountName(s string) bool { return s != "" && checkUser(s) == nil }

// isPlain reports whether text has no control characters and is not too long.
func isPlain(s string) bool {
	return len(s) < 1024 && !strings.ContainsFunc(s, func(r rune) bool { return r < 32 || r == 127 })
}

func (a *accounts) has(name string) bool {
	return a.find(func(u account) bool { return u.name == name }) != nil
}

func (a *accounts) find(is func(account) bool) *account {
	for i := range a.users {
		if is(a.users[i]) {
			return &a.users[i]
		}
	}
	return nil
}

// resolve returns the name of the user that an image asks for, NAME or UID, each
// with :GROUP or without; empty: it cannot be had. One that has an id only is
// given a name.
func (a *accounts) resolve(user string) string {
	name, group, _ := strings.Cut(user, ":")
	if name == "" {
		return ""
	}
	if a.has(name) {
		return name
	}
	uid, ok := parseID(name)
	if !ok {
		return ""
	}
	if u := a.find(func(u account) bool { return u.uid == uid }); u != nil {
		return u.name
	}
	gid, ok := parseID(group)
	if !ok {
		gid = 0 // as the image specification has it
	}
	u := account{name: "u" + strconv.Itoa(uid), uid: uid, gid: gid, home: "/home/user", shell: a.shell}
	a.users = append(a.users, u)
	return u.name
}

// passwd is the file of that name.
func (a *accounts) passwd() string {
	var b strings.Builder
	for _, u := range a.users {
		b.WriteString(strings.Join([]string{u.name, "x", strconv.Itoa(u.uid), strconv.Itoa(u.gid), u.gecos, u.home, u.shell}, ":") + "\n")
	}
	return b.String()
}

// group is the file of that name.
func (a *accounts) group() string { return strings.Join(a.groups, "\n") + "\n" }
