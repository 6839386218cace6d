// Package version tells which build of the project is running.
package version

import (
	"runtime/debug"
	"sync"
)

// module is the path under which a program's build information lists us.
const module = "github.com/agent-sandbox/sandbox-go"

// String is the version of the project that is linked into this program: the
// module version of an installed or required release, else the revision of
// the checkout with "+dirty" where it had local changes, else "devel".
var String = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if info.Main.Path != module {
		for _, d := range info.Deps {
			if d.Path != module {
				continue
			}
			if d.Replace != nil {
				d = d.Replace
			}
			if d.Version != "" {
				return d.Version
			}
		}
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return fromVCS(info.Settings)
})

func fromVCS(settings []debug.BuildSetting) string {
	var revision, dirty string
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+dirty"
			}
		}
	}
	if revision == "" {
		return "devel"
	}
	return revision[:min(12, len(revision))] + dirty
}

// Envd is the version of E2B's envd whose behaviour the runtime promises; the
// SDKs of E2B choose by it what they use.
const Envd = "0.6.13"
