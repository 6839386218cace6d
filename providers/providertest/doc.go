// Package providertest checks that a provider keeps its contract, and that the
// client works on it: [Run] and [RunClient], for the tests of every provider.
//
// Both make real sandboxes and remove them. A test that fails says which
// promise of package providers is broken.
package providertest
