// Package sandboxfn runs functions, programs and file operations in sandboxes.
//
// Most programs annotate a function with //sandbox:func, run sandboxgen and
// call what it generates; [Func] is the handle of such a function. Underneath
// lies a client that can be used alone: [Create] makes a sandbox,
// [Sandbox.Command] and [Sandbox.Shell] run programs in it with the shape of
// os/exec, and [Sandbox.FS] is its file system with the shapes of os and io/fs.
//
//	sb, err := sandboxfn.Create(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	out, err := sb.Command(ctx, "uname", "-a").Output()
//
// Package functions use a default client, made at first use from the
// environment; [NewClient] makes one with other settings and [WithClient] lets
// generated functions use it.
//
// Errors of this package are, or wrap, an [*Error] with a stable code. Test for
// them with errors.Is and the sentinels Err…; Ex000 sentinels such as [ErrExec]
// match their whole class. Errors of a user's own function come back as they
// were.
//
// Three clocks never stand in for each other: the lifetime of a sandbox, the
// timeout of a command or call, and the timeout of a request.
package sandboxfn
