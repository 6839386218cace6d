// Package filesystem serves the files of a sandbox: the envd service
// filesystem.Filesystem and the transfer of content on /files. [New] makes
// both; a server mounts them behind its own authentication.
//
// Everything happens with the rights of the user that the request acts as, and
// in the mount name space of the server, which a server in a sandbox shares
// with the code it serves. Paths are resolved by the kernel and never through
// the magic links of /proc, which would lead to what the server itself has open.
package filesystem
