package sandboxfn

import "github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"

// Error is a failure with a stable code; docs/errors.md lists the codes.
type Error = errdefs.Error

// ErrorCode names a kind of failure: "E" and four digits.
type ErrorCode = errdefs.Code

// Sentinels for errors.Is. Those in the first group match every error of their
// class.
var (
	ErrAuth    = errdefs.ErrAuth
	ErrCreate  = errdefs.ErrCreate
	ErrExec    = errdefs.ErrExec
	ErrFile    = errdefs.ErrFile
	ErrNetwork = errdefs.ErrNetwork
	ErrBuild   = errdefs.ErrBuild
	ErrBackend = errdefs.ErrBackend
	ErrCall    = errdefs.ErrCall

	ErrTemplateNotFound     = errdefs.ErrTemplateNotFound
	ErrQuota                = errdefs.ErrQuota
	ErrNotReady             = errdefs.ErrNotReady
	ErrIsolation            = errdefs.ErrIsolation
	ErrOption               = errdefs.ErrOption
	ErrRequire              = errdefs.ErrRequire
	ErrNotFound             = errdefs.ErrNotFound
	ErrExpired              = errdefs.ErrExpired
	ErrKilled               = errdefs.ErrKilled
	ErrCrashed              = errdefs.ErrCrashed
	ErrPaused               = errdefs.ErrPaused
	ErrCommandTimeout       = errdefs.ErrCommandTimeout
	ErrNamedCommandNotFound = errdefs.ErrNamedCommandNotFound
	ErrArgument             = errdefs.ErrArgument
	ErrInterpreterMissing   = errdefs.ErrInterpreterMissing
	ErrCommandNotFound      = errdefs.ErrCommandNotFound
	ErrUserNotAvailable     = errdefs.ErrUserNotAvailable
	ErrMemoryLimit          = errdefs.ErrMemoryLimit
	ErrProcessGone          = errdefs.ErrProcessGone
	ErrPathNotFound         = errdefs.ErrPathNotFound
	ErrPermission           = errdefs.ErrPermission
	ErrFileKind             = errdefs.ErrFileKind
	ErrNoSpace              = errdefs.ErrNoSpace
	ErrMissed               = errdefs.ErrMissed
	ErrConnect              = errdefs.ErrConnect
	ErrConnectionLost       = errdefs.ErrConnectionLost
	ErrUnknownProvider      = errdefs.ErrUnknownProvider
	ErrNotSupported         = errdefs.ErrNotSupported
	ErrSettings             = errdefs.ErrSettings
	ErrRateLimit            = errdefs.ErrRateLimit
	ErrOverload             = errdefs.ErrOverload
	ErrValidation           = errdefs.ErrValidation
	ErrPayloadTooLarge      = errdefs.ErrPayloadTooLarge
	ErrWorkerMismatch       = errdefs.ErrWorkerMismatch
	ErrWorkerLost           = errdefs.ErrWorkerLost
	ErrUnknownFunction      = errdefs.ErrUnknownFunction
	ErrPanic                = errdefs.ErrPanic
	ErrDeadline             = errdefs.ErrDeadline
	ErrCancelled            = errdefs.ErrCancelled
	ErrWorkerStart          = errdefs.ErrWorkerStart
	ErrSecretNotFound       = errdefs.ErrSecretNotFound

	// ErrTimeout matches every error that means a clock ran out, whichever
	// clock it was; each also matches context.DeadlineExceeded.
	ErrTimeout = errdefs.ErrTimeout
)

// CodeOf returns the code of the first [*Error] in err's tree, or "".
func CodeOf(err error) ErrorCode { return errdefs.CodeOf(err) }
