//go:build linux

package account

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// User is who a command or a file operation acts as. It is immutable.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string   // absolute

	becomes  bool // new processes are given the identity
	switches bool // file operations change to the rights of the user
}

// Credential is the identity for a new process; nil when it is the one that
// the server has itself.
func (u *User) Credential() *syscall.Credential {
	if !u.becomes {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// UnavailableError says that a name cannot be acted as.
type UnavailableError struct {
	Name string
	// Known says that the account exists, but this server cannot change its identity.
	Known bool
}

// Error says which of the two reasons it is.
func (e *UnavailableError) Error() string {
	if e.Known {
		return fmt.Sprintf("user '%s' is not available: this sandbox cannot change the user", e.Name)
	}
	return fmt.Sprintf("invalid username: '%s'", e.Name)
}

// Book finds users. It is safe for concurrent use.
type Book struct {
	def       string
	canSwitch bool
	passwd    file
	group     file

	mu   sync.Mutex
	last remembered // guarded by mu
}

// remembered is the default user as of two states of the files.
type remembered struct {
	user          *User // nil: nobody yet
	passwd, group int
}

// NewBook returns a Book whose unnamed user is def; an empty def is the user
// the server runs as. Without canSwitch no other user can be had.
func NewBook(def string, canSwitch bool) *Book {
	return &Book{def: def, canSwitch: canSwitch, passwd: file{path: "/etc/passwd"}, group: file{path: "/etc/group"}}
}

// Lookup finds the user called name; an empty name is the default user. The
// error for one that cannot be had is an [UnavailableError].
func (b *Book) Lookup(name string) (*User, error) {
	if name == "" || name == b.def {
		return b.defaultUser()
	}
	e, err := b.find(func(e *entry) bool { return e.name == name })
	if err != nil {
		return nil, err
	}
	self := uint32(os.Geteuid())
	switch {
	case e == nil:
		return nil, &UnavailableError{Name: name}
	case b.canSwitch:
		return b.user(e)
	case b.def == "" && e.uid == self:
		return ownIdentity(e), nil
	}
	return nil, &UnavailableError{Name: name, Known: true}
}

// defaultUser finds the default user; most requests act as it.
func (b *Book) defaultUser() (*User, error) {
	now := remembered{}
	var err1, err2 error
	now.passwd, err1 = b.passwd.state()
	now.group, err2 = b.group.state()
	b.mu.Lock()
	last := b.last
	b.mu.Unlock()
	known := err1 == nil && err2 == nil
	if known && last.user != nil && last.passwd == now.passwd && last.group == now.group {
		return last.user, nil
	}
	u, err := b.findDefault()
	if err == nil && known {
		// What it was found in is not older than now.
		now.user = u
		b.mu.Lock()
		b.last = now
		b.mu.Unlock()
	}
	return u, err
}

func (b *Book) findDefault() (*User, error) {
	self := uint32(os.Geteuid())
	match := func(e *entry) bool { return e.name == b.def }
	if b.def == "" {
		match = func(e *entry) bool { return e.uid == self }
	}
	e, err := b.find(match)
	switch {
	case err != nil:
		return nil, err
	case e != nil && b.canSwitch:
		return b.user(e)
	case e != nil:
		return ownIdentity(e), nil
	case b.def != "" && b.canSwitch:
		return nil, &UnavailableError{Name: b.def}
	}
	// The server's own account need not have a name.
	name := b.def
	if name == "" {
		name = strconv.Itoa(int(self))
	}
	return ownIdentity(&entry{name: name, home: "/"}), nil
}

// ownIdentity gives the server's own ids the name and home of e.
func ownIdentity(e *entry) *User {
	u := &User{Name: e.name, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: e.home}
	groups, err := os.Getgroups()
	if err != nil {
		groups = nil
	}
	for _, g := range groups {
		u.Groups = append(u.Groups, uint32(g))
	}
	return u
}

func (b *Book) user(e *entry) (*User, error) {
	groups, err := b.groups(e)
	if err != nil {
		return nil, err
	}
	return &User{
		Name: e.name, UID: e.uid, GID: e.gid, Groups: groups, Home: e.home,
		becomes: true,
		// The rights of root are those the server has already.
		switches: e.uid != uint32(os.Geteuid()) || e.gid != uint32(os.Getegid()),
	}, nil
}

// find returns the first account that match accepts; nil when there is none.
func (b *Book) find(match func(*entry) bool) (*entry, error) {
	lines, err := b.passwd.lines()
	for _, line := range lines {
		if e := parseEntry(line); e != nil && match(e) {
			return e, nil
		}
	}
	return nil, err
}

// groups lists the groups e is a member of, its own one included.
func (b *Book) groups(e *entry) ([]uint32, error) {
	out := []uint32{e.gid}
	lines, err := b.group.lines()
	for _, line := range lines {
		// 65536 is NGROUPS_MAX of Linux.
		if gid, ok := memberOf(line, e.name); ok && gid != e.gid && len(out) < 65536 {
			out = append(out, gid)
		}
	}
	return out, err
}

// entry is one line of /etc/passwd, passwd(5).
type entry struct {
	name     string
	uid, gid uint32
	home     string
}

// parseEntry reads one line of /etc/passwd; nil for one that is not an account.
func parseEntry(line string) *entry {
	f := strings.Split(line, ":")
	if len(f) < 7 || f[0] == "" || strings.HasPrefix(f[0], "#") {
		return nil
	}
	uid, err1 := parseID(f[2])
	gid, err2 := parseID(f[3])
	if err1 != nil || err2 != nil {
		return nil
	}
	home := f[5]
	if !strings.HasPrefix(home, "/") {
		home = "/"
	}
	return &entry{name: f[0], uid: uid, gid: gid, home: home}
}

// parseID refuses the value that the kernel takes for "leave as it is".
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && uint32(n) == ^uint32(0) {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

// memberOf reads one line of /etc/group, group(5), and reports its number when
// name is one of its members.
func memberOf(line, name string) (uint32, bool) {
	f := strings.Split(line, ":")
	if len(f) < 4 {
		return 0, false
	}
	gid, err := parseID(f[2])
	if err != nil {
		return 0, false
	}
	for m := range strings.SplitSeq(f[3], ",") {
		if strings.TrimSpace(m) == name {
			return gid, true
		}
	}
	return 0, false
}

// Names gives names to numbers for one listing, reading the files once. The
// zero value is not usable; see [Book.Names]. It is not safe for concurrent use.
type Names struct {
	users, groups map[uint32]string
}

// Names reads the current names of users and groups.
func (b *Book) Names() *Names {
	n := &Names{users: map[uint32]string{}, groups: map[uint32]string{}}
	// An unreadable file leaves the numbers without names, which is an answer.
	lines, _ := b.passwd.lines()
	for _, line := range lines {
		if e := parseEntry(line); e != nil {
			if _, dup := n.users[e.uid]; !dup {
				n.users[e.uid] = e.name
			}
		}
	}
	lines, _ = b.group.lines()
	for _, line := range lines {
		if f := strings.Split(line, ":"); len(f) >= 3 {
			if gid, err := parseID(f[2]); err == nil {
				if _, dup := n.groups[gid]; !dup {
					n.groups[gid] = f[0]
				}
			}
		}
	}
	return n
}

// User is the name of uid, or its decimal form.
func (n *Names) User(uid uint32) string { return nameOf(n.users, uid) }

// Group is the name of gid, or its decimal form.
func (n *Names) Group(gid uint32) string { return nameOf(n.groups, gid) }

func nameOf(m map[uint32]string, id uint32) string {
	if s, ok := m[id]; ok {
		return s
	}
	return strconv.FormatUint(uint64(id), 10)
}

type contextKey struct{}

// NewContext returns ctx with the user that the request acts as.
func NewContext(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, contextKey{}, u)
}

// FromContext is the user that the request acts as; nil when none was set.
func FromContext(ctx context.Context) *User {
	u, _ := ctx.Value(contextKey{}).(*User)
	return u
}
