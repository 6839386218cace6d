package policy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Policy is the compiled policy of a sandbox. It is immutable once [Policy.Know]
// has returned, and safe for concurrent use then. A nil *Policy allows
// everything.
type Policy struct {
	switches switches
	files    *Files
	commands *Commands
}

const op = "read policy"

// invalid says what is wrong with a policy.
func invalid(format string, args ...any) error {
	return errdefs.New("E8007", op, fmt.Sprintf(format, args...))
}

// Compile checks what t and the environment say. A nil t says nothing. Lookup
// finds variables as os.LookupEnv does; nil: there are none. The names of
// endpoints are checked by [Policy.Know]; until then only core answers. Errors
// are E8007.
func Compile(t *model.Template, lookup func(string) (string, bool)) (*Policy, error) {
	if t == nil {
		t = &model.Template{}
	}
	if lookup == nil {
		lookup = func(string) (string, bool) { return "", false }
	}
	p := &Policy{}
	p.switches.declare(t.Server, lookup)
	var err error
	if p.files, err = compileFiles(&t.Policy.Files); err != nil {
		return nil, err
	}
	if p.commands, err = compileCommands(t, p.files); err != nil {
		return nil, err
	}
	return p, nil
}

// Files is what is said about files; nil: nothing.
func (p *Policy) Files() *Files {
	if p == nil {
		return nil
	}
	return p.files
}

// Commands is what is said about programs; nil: nothing.
func (p *Policy) Commands() *Commands {
	if p == nil {
		return nil
	}
	return p.commands
}

// Refusal says which rule is in the way. It never holds the content of a file,
// nor a path that the client did not name.
type Refusal struct {
	Code errdefs.Code // E8020 path, E8021 command, E8022 endpoint
	Rule string       // such as `files.deny "**/.ssh/**"`
	// Limit says that less of the same, or the same later, is not refused.
	Limit bool
}

// Error names the rule.
func (r *Refusal) Error() string {
	if r.Code == "E8022" {
		return r.Rule
	}
	return "policy: " + r.Rule
}

// Status is how HTTP says it.
func (r *Refusal) Status() int {
	switch {
	case r.Code == "E8022":
		return http.StatusNotFound
	case r.Limit && r.Code == "E8020":
		return http.StatusRequestEntityTooLarge
	case r.Limit:
		return http.StatusTooManyRequests
	}
	return http.StatusForbidden
}

// RPC is how the protocols of envd say it.
func (r *Refusal) RPC() connect.Code {
	switch {
	case r.Code == "E8022":
		return connect.CodeNotFound
	case r.Limit:
		return connect.CodeResourceExhausted
	}
	return connect.CodePermissionDenied
}

// Connect is err as the error of a call: of a [Refusal] with its code, of anything
// else as it is.
func Connect(err error) error {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return fault.New(r.RPC(), r.Code, "%w", err)
	}
	return err
}

// HTTP answers a request with err, if it is a [Refusal], and reports whether it is.
func HTTP(w http.ResponseWriter, err error) bool {
	r, ok := errors.AsType[*Refusal](err)
	if ok {
		fault.HTTP(w, r.Status(), r.Code, err.Error())
	}
	return ok
}

// quoted writes a list as it would stand in a template.
func quoted(list []string) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", s)
	}
	return b.String()
}
