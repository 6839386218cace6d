// Package e2b is the provider for services that are shaped like E2B: its cloud,
// our own gateway (sandboxd serve), and, as another [Profile], package fc's.
// Start at [New].
//
// It speaks to the control plane only. What happens inside a sandbox goes from
// the client to the endpoint that the provider returns.
package e2b
