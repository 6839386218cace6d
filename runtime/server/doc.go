// Package server joins the services of the runtime into the one HTTP server
// that runs inside a sandbox: the envd protocol (process.Process,
// filesystem.Filesystem, /files, /health, /envs) and the channels of workers,
// behind one check of the access token. Start at [New].
//
// docs/protocol.md says what is on the wire and where it differs from envd.
package server
