// Package gateway serves the control plane of E2B on this machine and routes
// to the sandboxes it makes: any E2B SDK that is pointed at it works, without
// an account. [New] makes a [Server] from a provider and a state directory;
// [OpenKeys] manages the keys that clients present. docs/gateway.md says what
// differs from the hosted service.
//
// It is imported by commands only and isolates nothing itself: that is the
// provider's part.
package gateway
