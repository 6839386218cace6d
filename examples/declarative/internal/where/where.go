// Package where tells in which process, as which user and in which Linux
// namespaces the program runs, so that the examples can show that a function
// ran in a sandbox.
package where

import (
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"
)

// Place is where some code ran.
type Place struct {
	PID        int
	User       string
	Hostname   string
	Namespaces []Namespace
}

// Namespace is one link of /proc/self/ns.
type Namespace struct{ Kind, ID string }

// kinds are the namespaces that a local sandbox has of its own.
var kinds = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}

// Here describes this process.
func Here() (Place, error) {
	host, err := os.Hostname()
	if err != nil {
		return Place{}, err
	}
	p := Place{PID: os.Getpid(), Hostname: host, User: fmt.Sprintf("uid %d", os.Getuid())}
	if u, err := user.Current(); err == nil {
		p.User = fmt.Sprintf("%s (uid %s)", u.Username, u.Uid)
	}
	for _, kind := range kinds {
		id, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return Place{}, err
		}
		p.Namespaces = append(p.Namespaces, Namespace{kind, id})
	}
	return p, nil
}

// Shared lists the namespaces that a and b have in common.
func Shared(a, b Place) []string {
	var shared []string
	for i := range min(len(a.Namespaces), len(b.Namespaces)) {
		if a.Namespaces[i] == b.Namespaces[i] {
			shared = append(shared, a.Namespaces[i].Kind)
		}
	}
	return shared
}

// Report prints where a function ran beside where this program runs, and how
// long its first call and a later one took.
func Report(w io.Writer, inside Place, cold, warm time.Duration) error {
	outside, err := Here()
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := compare(w, inside, outside); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n  first call %v with a new sandbox, second call %v\n",
		cold.Round(100*time.Microsecond), warm.Round(10*time.Microsecond))
	return err
}

// compare prints both places side by side.
func compare(w io.Writer, inside, outside Place) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, in, out string) { fmt.Fprintf(tw, "  %s\t%s\t%s\n", name, in, out) }
	row("where", "in the sandbox", "this program")
	row("pid", fmt.Sprint(inside.PID), fmt.Sprint(outside.PID))
	row("user", inside.User, outside.User)
	row("hostname", inside.Hostname, outside.Hostname)
	for i := range min(len(inside.Namespaces), len(outside.Namespaces)) {
		in, out := inside.Namespaces[i], outside.Namespaces[i]
		row("ns/"+in.Kind, id(in.ID), id(out.ID))
	}
	return tw.Flush()
}

// id cuts "net:[4026531840]" down to the number.
func id(link string) string {
	_, num, ok := strings.Cut(link, ":[")
	if !ok {
		return link
	}
	return strings.TrimSuffix(num, "]")
}
