// Package providers is the contract between the client and what creates
// sandboxes: [Provider], the requests and answers it deals in, and the registry
// that finds one by name.
//
// A provider creates sandboxes and says where they are. It never carries
// commands, files or function calls: those go from the client straight to the
// [Endpoint] of the sandbox, in the E2B envd protocol, whatever the provider.
package providers
