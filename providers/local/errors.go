//go:build linux

package local

import "github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"

// IsolationError says why this machine cannot isolate a sandbox. It unwraps to
// an errdefs.Error of code E2010. When it is returned, nothing has run.
type IsolationError struct {
	Cause  Cause  // stable
	Step   string // what was refused: "clone", "mount /proc"
	Remedy string // what to change on this machine
	Err    error  // of the system call; may be nil
}

// Cause is a stable name of what is in the way.
type Cause string

// The causes.
const (
	CauseUserNamespaces      Cause = "userns_refused"             // by a seccomp filter or a container
	CauseUserNamespaceLimit  Cause = "userns_limit"               // user.max_user_namespaces, or the nesting limit
	CauseUserNamespaceSysctl Cause = "userns_disabled"            // kernel.unprivileged_userns_clone is 0
	CauseAppArmor            Cause = "apparmor_userns_restricted" // kernel.apparmor_restrict_unprivileged_userns
	CauseMapping             Cause = "mapping_refused"            // of user ids
	CauseMount               Cause = "mount_refused"              // by a container's security profile
	CauseNetwork             Cause = "network_refused"            // by a container's security profile
	CauseProc                Cause = "proc_not_mountable"         // the procfs outside is masked
	CauseOverlay             Cause = "overlay_unavailable"        // needed for layers of files only
	CauseSeccomp             Cause = "seccomp_missing"            // a kernel without filters
	CauseKernel              Cause = "kernel_too_old"             // below 5.4
	CausePlatform            Cause = "platform_unsupported"       // not Linux on amd64 or arm64
	CauseGVisor              Cause = "gvisor_broken"              // runsc is there and cannot run a guest
	CauseOther               Cause = "construction_failed"        // anything else; Step and Err say what
)

// Error is the text of the errdefs.Error.
func (e *IsolationError) Error() string { return e.coded().Error() }

// Unwrap returns the errdefs.Error, whose cause is Err.
func (e *IsolationError) Unwrap() error { return e.coded() }

func (e *IsolationError) coded() *errdefs.Error {
	return &errdefs.Error{
		Code: "E2010", Op: "create sandbox",
		Message:    "isolation is not possible here (" + string(e.Cause) + "): " + e.Step + " was refused; " + e.Remedy,
		Suggestion: e.Remedy,
		Err:        e.Err,
	}
}
