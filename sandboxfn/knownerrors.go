package sandboxfn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// knownErrors are the errors that keep their identity: those that generated
// code has named, and those of the standard library below. It is complete once
// the program is initialised.
var knownErrors = sync.OnceValue(func() *envelope.Errors {
	set := envelope.NewErrors(newRemoteError)
	for _, e := range append(stdErrors(), errorEntries...) {
		if e.sentinel != nil {
			set.AddSentinel(e.name, e.sentinel)
		} else if e.typ != nil {
			set.AddType(e.typ)
		}
	}
	return set
})

// stdErrors names only packages that this one needs anyway, so that the list
// makes no program larger. Generated code adds those that the user's files
// import.
func stdErrors() []ErrorEntry {
	deadline := context.DeadlineExceeded // whose own type is not an error variable's
	return []ErrorEntry{
		ErrorType[*callError](),
		Sentinel("io.EOF", &io.EOF),
		Sentinel("io.ErrUnexpectedEOF", &io.ErrUnexpectedEOF),
		Sentinel("io.ErrClosedPipe", &io.ErrClosedPipe),
		Sentinel("io.ErrNoProgress", &io.ErrNoProgress),
		Sentinel("io.ErrShortBuffer", &io.ErrShortBuffer),
		Sentinel("io.ErrShortWrite", &io.ErrShortWrite),
		Sentinel("io/fs.ErrInvalid", &fs.ErrInvalid),
		Sentinel("io/fs.ErrPermission", &fs.ErrPermission),
		Sentinel("io/fs.ErrExist", &fs.ErrExist),
		Sentinel("io/fs.ErrNotExist", &fs.ErrNotExist),
		Sentinel("io/fs.ErrClosed", &fs.ErrClosed),
		Sentinel("io/fs.SkipDir", &fs.SkipDir),
		Sentinel("io/fs.SkipAll", &fs.SkipAll),
		Sentinel("context.Canceled", &context.Canceled),
		Sentinel("context.DeadlineExceeded", &deadline),
		Sentinel("errors.ErrUnsupported", &errors.ErrUnsupported),
		Sentinel("os.ErrNoDeadline", &os.ErrNoDeadline),
		Sentinel("os.ErrDeadlineExceeded", &os.ErrDeadlineExceeded),
		Sentinel("os.ErrProcessDone", &os.ErrProcessDone),
		Sentinel("os/exec.ErrNotFound", &exec.ErrNotFound),
		Sentinel("os/exec.ErrDot", &exec.ErrDot),
		Sentinel("os/exec.ErrWaitDelay", &exec.ErrWaitDelay),
		Sentinel("net.ErrClosed", &net.ErrClosed),
		Sentinel("net.ErrWriteToConnected", &net.ErrWriteToConnected),
		Sentinel("net/http.ErrBodyNotAllowed", &http.ErrBodyNotAllowed),
		Sentinel("net/http.ErrHandlerTimeout", &http.ErrHandlerTimeout),
		Sentinel("net/http.ErrMissingFile", &http.ErrMissingFile),
		Sentinel("net/http.ErrNoCookie", &http.ErrNoCookie),
		Sentinel("net/http.ErrNoLocation", &http.ErrNoLocation),
		Sentinel("net/http.ErrServerClosed", &http.ErrServerClosed),
		Sentinel("net/http.ErrUseLastResponse", &http.ErrUseLastResponse),
		Sentinel("strconv.ErrRange", &strconv.ErrRange),
		Sentinel("strconv.ErrSyntax", &strconv.ErrSyntax),
		Sentinel("bufio.ErrBufferFull", &bufio.ErrBufferFull),
		Sentinel("bufio.ErrInvalidUnreadByte", &bufio.ErrInvalidUnreadByte),
		Sentinel("bufio.ErrInvalidUnreadRune", &bufio.ErrInvalidUnreadRune),
		Sentinel("bufio.ErrNegativeCount", &bufio.ErrNegativeCount),
		Sentinel("bufio.ErrTooLong", &bufio.ErrTooLong),
		Sentinel("bufio.ErrNegativeAdvance", &bufio.ErrNegativeAdvance),
		Sentinel("bufio.ErrAdvanceTooFar", &bufio.ErrAdvanceTooFar),
		Sentinel("bufio.ErrBadReadCount", &bufio.ErrBadReadCount),
		Sentinel("bufio.ErrFinalToken", &bufio.ErrFinalToken),
		Sentinel("bytes.ErrTooLarge", &bytes.ErrTooLarge),
		Sentinel("encoding/hex.ErrLength", &hex.ErrLength),

		ErrorType[*fs.PathError](),
		ErrorType[*os.LinkError](),
		ErrorType[*os.SyscallError](),
		ErrorType[syscall.Errno](),
		ErrorType[*exec.Error](),
		ErrorType[*net.AddrError](),
		ErrorType[*net.DNSError](),
		ErrorType[*net.OpError](),
		ErrorType[*net.ParseError](),
		ErrorType[net.InvalidAddrError](),
		ErrorType[net.UnknownNetworkError](),
		ErrorType[*url.Error](),
		ErrorType[url.EscapeError](),
		ErrorType[url.InvalidHostError](),
		ErrorType[*strconv.NumError](),
		ErrorType[*time.ParseError](),
		ErrorType[base64.CorruptInputError](),
		ErrorType[hex.InvalidByteError](),
		ErrorType[*http.MaxBytesError](),
		ErrorType[*errdefs.Error](),
		ErrorType[*PanicError](),
		ErrorType[*WorkerLostError](),
		ErrorType[*FieldError](),
		ErrorType[*fieldErrors](),
		ErrorType[*transient](),
	}
}
