// Package errdefs holds the one error type of the project, the table of its
// codes and the sentinels for errors.Is. The client, the runtime, providers and
// plugins share it, so that a failure keeps its code on its way to the caller.
//
// Programs usually reach it through the aliases of package sandboxfn.
package errdefs
