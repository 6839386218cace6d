package sandboxfn

import (
	"encoding/json"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A worker that does not keep to the rules asks for calls all the same.
func TestNestedCallsOfHostileWorkers(t *testing.T) {
	ctx, _ := poolContext(t, &fakeMaker{})
	ask := func(h *hostCall, id string, o map[string]any) error {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		n := 3
		p, err := envelope.EncodeRequest(envelope.Request{ID: id, MaxPayload: 1 << 20, Meta: []string{metaOptions, string(text)}}, poolDouble.h.fn.args, knownErrors(), &n, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := h.nested(ctx, p)
		if err != nil {
			return err
		}
		var got int
		d, err := envelope.DecodeResponse(envelope.Payload{Body: answer.Body[1:]}, poolDouble.h.fn.res, knownErrors(), nil, &got)
		if err != nil || d.Err != nil || got != 6 {
			t.Errorf("got %d, %v, %v", got, d.Err, err)
		}
		return nil
	}
	if err := ask(&hostCall{}, poolDouble.Name(), nil); err != nil {
		t.Errorf("an honest call: %v", err)
	}
	for _, inner := range []Nested{NestedRefuse, NestedLocal} {
		if err := ask(&hostCall{inner: inner}, poolDouble.Name(), nil); errdefs.CodeOf(err) != "E9016" {
			t.Errorf("nested=%s: %v", inner, err)
		}
	}
	if err := ask(&hostCall{}, "no.such", nil); errdefs.CodeOf(err) != "E9008" {
		t.Errorf("unknown function: %v", err)
	}
	var o nestedOptions
	text := `{"Network":"host","User":"root","Memory":1099511627776,"Secrets":{"A":"PATH"},"Env":{"A":"b"},"Volumes":[{"Name":"x","Path":"/x"}],"Workers":{"Min":900,"Max":900},"Provider":"other","MaxPayload":9000000000}`
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	declared := Options{Memory: GiB, MaxPayload: MiB}
	if got := o.over(declared); got.Network != "" || got.User != "" || got.Memory != GiB || got.Secrets != nil || got.Env != nil ||
		got.Volumes != nil || got.Workers != (Workers{}) || got.Provider != "" || got.MaxPayload != MiB {
		t.Errorf("a worker chose %+v", got)
	}
}
