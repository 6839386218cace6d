// Command large is linked with what a user's program is linked with at most.
package main

import (
	_ "crypto/tls"
	_ "encoding/json"
	_ "go/types"
	_ "html/template"
	_ "net/http"

	_ "connectrpc.com/connect"
	_ "google.golang.org/protobuf/proto"

	_ "github.com/agent-sandbox/sandbox-go/providers/local"
)

func main() {}
