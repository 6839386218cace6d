// Package sdktest runs the published E2B packages for JavaScript, unmodified,
// against `sandboxd serve`, and clients that mean harm, too. It has tests only.
//
// TestSDK installs each version of the packages from its lock file in testdata,
// starts a gateway, and runs testdata/suite.mjs with nothing but the package's
// own environment variables set. Each test of the suite is a subtest:
//
//	go test ./internal/sdktest -run 'TestSDK/e2b-2.51.0/address/files'
//
// Without node and npm the tests are skipped, in CI (CI=true) they fail. The
// packages are kept in the user's cache directory, by the digest of their lock
// file, so only the first run needs a network.
package sdktest
