package errdefs

import (
	"errors"
	"io/fs"
)

// Code names a kind of failure: "E" and four digits. The first digit is the
// class; Ex000 stands for the whole class.
type Code string

// Class is the code of the class c belongs to: E3000 for E3001.
func (c Code) Class() Code {
	if len(c) != 5 {
		return ""
	}
	return c[:2] + "000"
}

func (c Code) isClass() bool { return len(c) == 5 && c[2:] == "000" }

// Meaning is the one-line description of c in the table, or "" for a code that
// is not in it.
func (c Code) Meaning() string { return c.info().meaning }

// Suggestion is what a reader can do about errors of code c; empty when there
// is nothing general to say.
func (c Code) Suggestion() string { return c.info().suggestion }

// ExitStatus is the status with which commands end for an error of code c:
// 1 general, 2 wrong arguments, 3 authentication, 4 not found, 5 timeout, 6 quota,
// 7 refused: by a policy or permissions, or for want of a capability.
func (c Code) ExitStatus() int {
	if s := c.info().exit; s != 0 {
		return s
	}
	return 1
}

// Codes lists every code of the table, in order.
func Codes() []Code {
	out := make([]Code, len(table))
	for i, row := range table {
		out[i] = row.code
	}
	return out
}

// Like is the error of the standard library that errors of code c also are for
// errors.Is, beside those of timeouts: what package os says in the same case. Nil:
// none. That a sandbox, a template or a session is not there is not among them, so
// that it is not taken for a file that is not.
func (c Code) Like() error { return c.info().like }

// Timeout reports whether c means that a clock ran out.
func (c Code) Timeout() bool { return c.info().timeout }

func (c Code) info() row {
	for _, r := range table {
		if r.code == c {
			return r
		}
	}
	return row{}
}

type row struct {
	code       Code
	meaning    string
	suggestion string
	exit       int   // 0 means 1
	timeout    bool  // also context.DeadlineExceeded and os.ErrDeadlineExceeded
	like       error // what errors of files of this machine are in the same case; nil: nothing
}

// table is the one list of codes. docs/errors.md is written from it.
var table = []row{
	{code: "E1000", meaning: "authentication failed", exit: 3},
	{code: "E1001", meaning: "no API key, or the service refused it", suggestion: "set SANDBOX_API_KEY, or choose another provider", exit: 3},
	{code: "E1002", meaning: "credentials expired and could not be renewed", suggestion: "check the clock of this machine and renew the credentials", exit: 3},
	{code: "E1003", meaning: "access key is incomplete", suggestion: "set both halves of the access key", exit: 3},
	{code: "E1004", meaning: "access key could not be exchanged for an API key", suggestion: "check the rights of the access key and the region", exit: 3},
	{code: "E1005", meaning: "request signature refused", suggestion: "set the clock of this machine", exit: 3},
	{code: "E1006", meaning: "not allowed", exit: 3},
	{code: "E1007", meaning: "a credentials file is readable by others", suggestion: "chmod 600 the file", exit: 3},
	{code: "E1008", meaning: "profile not found", exit: 4},

	{code: "E2000", meaning: "sandbox could not be created"},
	{code: "E2001", meaning: "template not found", suggestion: "use the template base, or build the template first", exit: 4},
	{code: "E2002", meaning: "quota exceeded", suggestion: "kill sandboxes that are no longer needed", exit: 6},
	{code: "E2003", meaning: "region not available"},
	{code: "E2004", meaning: "template invalid", exit: 2},
	{code: "E2005", meaning: "template could not be fetched", suggestion: "check the network, the address and the credentials for it"},
	{code: "E2006", meaning: "archive of a template refused, or its copy in the cache damaged", suggestion: "clear the template cache, and tell the author of the template if that does not help"},
	{code: "E2007", meaning: "template catalog malformed", exit: 2},
	{code: "E2009", meaning: "sandbox was created but did not become ready; it was removed"},
	{code: "E2010", meaning: "this machine cannot isolate a sandbox", suggestion: "see the remedy in the message, or use another provider"},
	{code: "E2011", meaning: "an option of the sandbox is out of range or malformed", exit: 2},
	{code: "E2012", meaning: "a required protection cannot be enforced here", exit: 7},
	{code: "E2020", meaning: "sandbox unknown", suggestion: "list the sandboxes; an id is known only to the provider that made it", exit: 4},
	{code: "E2021", meaning: "sandbox expired", suggestion: "create it with a longer Lifetime, or move the end with SetLifetime", exit: 4},
	{code: "E2022", meaning: "sandbox was killed", exit: 4},
	{code: "E2023", meaning: "sandbox crashed", exit: 4},
	{code: "E2024", meaning: "sandbox is paused", suggestion: "resume it first"},

	{code: "E3000", meaning: "execution failed"},
	{code: "E3001", meaning: "command timed out", suggestion: "raise Timeout, or look for what the command waits for", exit: 5, timeout: true},
	{code: "E3002", meaning: "command ended with a non-zero status"},
	{code: "E3003", meaning: "code execution failed"},
	{code: "E3004", meaning: "capability not enabled", suggestion: "declare it in the template", exit: 7},
	{code: "E3005", meaning: "named command not found", exit: 4},
	{code: "E3006", meaning: "the sandbox's server refused a call or answered nonsense"},
	{code: "E3007", meaning: "program not found or not executable", suggestion: "check the path and the PATH of the template", exit: 4},
	{code: "E3008", meaning: "user not available in this sandbox"},
	{code: "E3009", meaning: "killed at the memory limit of the sandbox", suggestion: "raise the memory of the sandbox"},
	{code: "E3010", meaning: "process is gone"},
	{code: "E3011", meaning: "an option of a command is malformed", exit: 2},
	{code: "E3012", meaning: "working directory is not usable"},
	{code: "E3013", meaning: "standard input of the process is closed"},
	{code: "E3014", meaning: "an argument of a named command is missing, unknown or of a wrong type", suggestion: "list the commands to see their arguments", exit: 2},
	{code: "E3015", meaning: "a named command failed"},
	{code: "E3016", meaning: "interpreter of the language is missing or too old", suggestion: "install it in the template"},

	{code: "E4000", meaning: "file operation failed"},
	{code: "E4001", meaning: "path not found", exit: 4, like: fs.ErrNotExist},
	{code: "E4002", meaning: "permission denied", exit: 7, like: fs.ErrPermission},
	{code: "E4003", meaning: "wrong kind of file"},
	{code: "E4004", meaning: "no space left in the sandbox", suggestion: "raise the disk size of the sandbox"},
	{code: "E4005", meaning: "path exists already", like: fs.ErrExist},
	{code: "E4006", meaning: "path is malformed", exit: 2, like: fs.ErrInvalid},
	{code: "E4007", meaning: "a watch missed changes", suggestion: "look at the directory and watch it again"},

	{code: "E5000", meaning: "network failure"},
	{code: "E5001", meaning: "cannot connect", suggestion: "check the network, the proxy and the address"},
	{code: "E5002", meaning: "request timed out", exit: 5, timeout: true},
	{code: "E5003", meaning: "connection lost"},
	{code: "E5004", meaning: "cancelled by the caller"},
	{code: "E5010", meaning: "body is larger than the provider allows"},

	{code: "E6000", meaning: "session failed"},
	{code: "E6001", meaning: "session not found", exit: 4},
	{code: "E6002", meaning: "session name exists already"},

	{code: "E7000", meaning: "build or deployment failed"},
	{code: "E7010", meaning: "template build failed"},
	{code: "E7011", meaning: "template build timed out", exit: 5, timeout: true},

	{code: "E8000", meaning: "provider failed"},
	{code: "E8001", meaning: "provider unknown", exit: 2},
	{code: "E8002", meaning: "plugin did not start"},
	{code: "E8003", meaning: "plugin protocol not supported"},
	{code: "E8004", meaning: "not supported by this provider", suggestion: "choose a provider that can", exit: 7, like: errors.ErrUnsupported},
	{code: "E8005", meaning: "plugin died or timed out"},
	{code: "E8006", meaning: "plugin or service gave an invalid answer"},
	{code: "E8007", meaning: "settings are malformed or conflict", exit: 2},
	{code: "E8010", meaning: "the service limits the rate of requests", suggestion: "wait, and make fewer requests at once", exit: 6},
	{code: "E8011", meaning: "the service is overloaded or out of order", suggestion: "try again later"},
	{code: "E8020", meaning: "path refused by policy", exit: 7, like: fs.ErrPermission},
	{code: "E8021", meaning: "command refused by policy", exit: 7, like: fs.ErrPermission},
	{code: "E8022", meaning: "endpoint not enabled", exit: 7},

	{code: "E9000", meaning: "function call failed"},
	{code: "E9001", meaning: "validation failed", exit: 2},
	{code: "E9002", meaning: "value cannot be encoded"},
	{code: "E9003", meaning: "payload is over the limit", suggestion: "raise max_payload, or pass the data as a file"},
	{code: "E9004", meaning: "program and worker differ", suggestion: "rebuild the worker from the same source"},
	{code: "E9005", meaning: "malformed payload"},
	{code: "E9006", meaning: "worker lost"},
	{code: "E9007", meaning: "batch result has the wrong length"},
	{code: "E9008", meaning: "function not known to the worker", suggestion: "run go generate and rebuild"},
	{code: "E9009", meaning: "callback or stream used after its call ended"},
	{code: "E9010", meaning: "no executable for the sandbox's platform"},
	{code: "E9011", meaning: "executable needs what the template lacks", suggestion: "build with CGO_ENABLED=0"},
	{code: "E9012", meaning: "the function panicked", suggestion: "print the error with %+v for the stack"},
	{code: "E9013", meaning: "the call's deadline passed", suggestion: "raise timeout, or the deadline of the context", exit: 5, timeout: true},
	{code: "E9014", meaning: "the call was cancelled"},
	{code: "E9015", meaning: "worker could not be started"},
	{code: "E9016", meaning: "nested call refused"},
	{code: "E9017", meaning: "secret not found", suggestion: "set it, or give the client a source (ClientOptions.Secrets)", exit: 2},
	{code: "E9018", meaning: "the object can't be used", suggestion: "make one with its constructor"},
}

// Sentinels for errors.Is. Those of a class match every code of the class.
var (
	ErrAuth    = &Error{Code: "E1000"}
	ErrCreate  = &Error{Code: "E2000"}
	ErrExec    = &Error{Code: "E3000"}
	ErrFile    = &Error{Code: "E4000"}
	ErrNetwork = &Error{Code: "E5000"}
	ErrSession = &Error{Code: "E6000"}
	ErrBuild   = &Error{Code: "E7000"}
	ErrBackend = &Error{Code: "E8000"}
	ErrCall    = &Error{Code: "E9000"}

	ErrNoAPIKey             = &Error{Code: "E1001"}
	ErrTemplateNotFound     = &Error{Code: "E2001"}
	ErrQuota                = &Error{Code: "E2002"}
	ErrNotReady             = &Error{Code: "E2009"}
	ErrIsolation            = &Error{Code: "E2010"}
	ErrOption               = &Error{Code: "E2011"}
	ErrRequire              = &Error{Code: "E2012"}
	ErrNotFound             = &Error{Code: "E2020"}
	ErrExpired              = &Error{Code: "E2021"}
	ErrKilled               = &Error{Code: "E2022"}
	ErrCrashed              = &Error{Code: "E2023"}
	ErrPaused               = &Error{Code: "E2024"}
	ErrCommandTimeout       = &Error{Code: "E3001"}
	ErrNamedCommandNotFound = &Error{Code: "E3005"}
	ErrCommandNotFound      = &Error{Code: "E3007"}
	ErrUserNotAvailable     = &Error{Code: "E3008"}
	ErrMemoryLimit          = &Error{Code: "E3009"}
	ErrProcessGone          = &Error{Code: "E3010"}
	ErrArgument             = &Error{Code: "E3014"}
	ErrInterpreterMissing   = &Error{Code: "E3016"}
	ErrPathNotFound         = &Error{Code: "E4001"}
	ErrPermission           = &Error{Code: "E4002"}
	ErrFileKind             = &Error{Code: "E4003"}
	ErrNoSpace              = &Error{Code: "E4004"}
	ErrMissed               = &Error{Code: "E4007"}
	ErrConnect              = &Error{Code: "E5001"}
	ErrConnectionLost       = &Error{Code: "E5003"}
	ErrUnknownProvider      = &Error{Code: "E8001"}
	ErrNotSupported         = &Error{Code: "E8004"}
	ErrSettings             = &Error{Code: "E8007"}
	ErrRateLimit            = &Error{Code: "E8010"}
	ErrOverload             = &Error{Code: "E8011"}
	ErrValidation           = &Error{Code: "E9001"}
	ErrPayloadTooLarge      = &Error{Code: "E9003"}
	ErrWorkerMismatch       = &Error{Code: "E9004"}
	ErrWorkerLost           = &Error{Code: "E9006"}
	ErrUnknownFunction      = &Error{Code: "E9008"}
	ErrPanic                = &Error{Code: "E9012"}
	ErrDeadline             = &Error{Code: "E9013"}
	ErrCancelled            = &Error{Code: "E9014"}
	ErrWorkerStart          = &Error{Code: "E9015"}
	ErrSecretNotFound       = &Error{Code: "E9017"}

	// ErrTimeout matches every error that means a clock ran out, whichever
	// clock it was; each also matches context.DeadlineExceeded.
	ErrTimeout = &Error{Code: "timeout"}
)
