// Package image lets provider local make sandboxes from OCI images. Import it
// for its effect:
//
//	import _ "github.com/agent-sandbox/sandbox-go/providers/local/image"
//
// An image is named by what CreateOptions.Image holds:
//
//	alpine:3.22                    in a registry, by tag
//	ghcr.io/me/tools@sha256:…      in a registry, by digest
//	oci:/path/to/layout[:tag]      an OCI image layout, a directory
//	docker-archive:/path/f.tar[:tag]   what docker save writes
//
// Credentials are those of the docker and podman command lines, with their
// helpers. A registry is spoken to by HTTPS only, unless it is on the loopback of
// this machine. Of an image for several platforms the one of this machine is
// taken. The package fetches; what is kept, and where, is the provider's.
package image
