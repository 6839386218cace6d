//go:build linux

package local

import (
	"io"
	"os"
	"strconv"
	"strings"
)

// A textFile is a small file that is written into the root view.
type textFile struct{ path, text string }

// maxHostFile bounds what is copied of a file of the host, in bytes.
const maxHostFile = 64 << 10

// etcFiles is the synthetic part of /etc.
func etcFiles(s *launchSpec) []textFile {
	resolv := "# this sandbox has no network\n"
	hosts := "127.0.0.1\tlocalhost " + hostName + "\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if s.network == netList {
		resolv = "nameserver 127.0.0.1\n"
	}
	if s.network == netHost {
		resolv = hostFile("/etc/resolv.conf", resolv)
		hosts = hostFile("/etc/hosts", hosts)
	}
	net := []textFile{
		{"etc/hosts", hosts},
		{"etc/hostname", hostName + "\n"},
		{"etc/resolv.conf", resolv},
	}
	if a := s.root.accounts; a != nil {
		return append(net, textFile{"etc/passwd", a.passwd()}, textFile{"etc/group", a.group()})
	}
	shell := loginShell()
	return append(net, []textFile{
		{"etc/passwd", "root:x:0:0:root:/root:" + shell + "\n" +
			"user:x:1000:1000:user:/home/user:" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
		{"etc/group", "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"},
		{"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\n"},
		// Short, so that a login shell costs what a shell costs.
		{"etc/profile", "export PATH=\"${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\"\numask 022\n"},
	}...)
}

// loginShell is the shell of every user inside.
func loginShell() string {
	if _, err := os.Stat("/bin/bash"); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// cpuFiles tells the processor count where tools look for it; /sys itself is
// not mounted.
func cpuFiles(cpus int) []textFile {
	text := "0\n"
	if cpus > 1 {
		text = "0-" + strconv.Itoa(cpus-1) + "\n"
	}
	return []textFile{
		{"sys/devices/system/cpu/online", text},
		{"sys/devices/system/cpu/possible", text},
	}
}

// hostFile returns the content of a file of the host, or def.
func hostFile(path, def string) string {
	f, err := os.Open(path)
	if err != nil {
		return def
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHostFile))
	if err != nil || strings.ContainsRune(string(b), 0) {
		return def
	}
	return string(b)
}
