package sandboxfn

import (
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
)

// Protocol buffer messages travel by their own encoding.
func init() {
	message := reflect.TypeFor[proto.Message]()
	envelope.Proto.Is = func(t reflect.Type) bool { return t.Implements(message) }
	envelope.Proto.Marshal = func(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }
	envelope.Proto.Unmarshal = func(b []byte, m any) error { return proto.Unmarshal(b, m.(proto.Message)) }
}
