// Package httpapi is the runtime's HTTP API for people and programs without a
// client library: processes, files, terminals and facts about the sandbox as
// plain JSON, server-sent events and WebSockets. It does nothing itself; the
// services of the runtime that also serve the process and filesystem protocols
// do. Package endpoint says what a row of its table is, docs/http-api.md what it
// looks like from outside.
package httpapi
