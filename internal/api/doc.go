// Package api is the control plane of services shaped like E2B: the JSON of its
// REST routes, which servers use too, and a client of them. Start at [New].
//
// The client knows one address and one key. It retries what is safe to repeat,
// bounds everything it reads, and returns every failure as an errdefs error. It
// knows nothing of providers and nothing of the data plane.
package api
