//go:build linux

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	fspb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// recording is one file of testdata/recordings; its README explains the format.
type recording struct {
	Scenario    string
	AccessToken string
	Setup       []string
	Exchanges   []*exchange
	Volatile    []string
}

type exchange struct {
	Method          string
	Path            string
	RequestHeaders  map[string]any
	Request         *body
	Status          *int
	ResponseHeaders map[string]any
	Response        *body
	Timing          struct{ StartMs, EndMs float64 }
	OrderNotes      string
}

type body struct {
	Kind           string
	BodyBase64     string
	Decoded        any
	Frames         []frame
	TrailingBase64 string
	Cut            any
}

type frame struct {
	Flags                int
	LengthPrefixedBase64 string
	Decoded              any
	AtMs                 float64
}

func loadRecording(t *testing.T, file string) *recording {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{}
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return r
}

func mustBase64(s string) []byte {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// bytes is the body as it was on the wire.
func (b *body) bytes() []byte {
	if b == nil {
		return nil
	}
	out := mustBase64(b.BodyBase64)
	for _, f := range b.Frames {
		out = append(out, mustBase64(f.LengthPrefixedBase64)...)
	}
	return append(out, mustBase64(b.TrailingBase64)...)
}

// header turns recorded headers, which hold bytes as Latin-1, into real ones.
func header(recorded map[string]any) http.Header {
	h := http.Header{}
	add := func(k, v string) {
		raw := make([]byte, 0, len(v))
		for _, r := range v {
			raw = append(raw, byte(r))
		}
		h[http.CanonicalHeaderKey(k)] = append(h[http.CanonicalHeaderKey(k)], string(raw))
	}
	for k, v := range recorded {
		switch v := v.(type) {
		case string:
			add(k, v)
		case []any:
			for _, one := range v {
				add(k, one.(string))
			}
		}
	}
	return h
}

// answer is what an answer means, as text by where it stands in it.
type answer map[string]string

// comparedHeaders are those that carry meaning for a client.
var comparedHeaders = []string{
	"Content-Type", "Content-Encoding", "Content-Disposition",
	"Content-Range", "Accept-Ranges", "Allow", "Last-Modified",
}

// meaning reduces an answer to what has to be the same: not error texts, not
// where output is split, not the order of one output against the other.
func meaning(path string, status int, h http.Header, raw []byte) answer {
	a := answer{"status": strconv.Itoa(status)}
	for _, k := range comparedHeaders {
		if v := strings.Join(h.Values(k), ", "); v != "" {
			a["header "+k] = v
		}
	}
	if rpc := strings.HasPrefix(path, "/process.") || strings.HasPrefix(path, "/filesystem."); rpc {
		// Messages are compressed from another size on; what they say is compared.
		delete(a, "header Content-Encoding")
	}
	contentType, params, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if strings.HasPrefix(contentType, "application/connect+") {
		a.stream(path, strings.TrimPrefix(contentType, "application/connect+"), raw)
		return a
	}
	if h.Get("Content-Encoding") == "gzip" {
		raw = gunzip(raw)
	}
	switch {
	case contentType == "application/json", strings.HasPrefix(path, "/files") && json.Valid(raw) && bytes.HasPrefix(raw, []byte("[{")):
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			a["body"] = fmt.Sprintf("bad JSON: %v", err)
			break
		}
		a.flatten("body", v)
	case contentType == "application/proto":
		a.flatten("body", decodeProto(path, false, raw))
	case contentType == "multipart/byteranges":
		delete(a, "header Content-Type") // holds a random boundary
		a["body"] = ranges(raw, params["boundary"])
	case status >= 400:
		// The text of an error is ours.
	default:
		a["body"] = string(raw)
	}
	return a
}

func gunzip(b []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return []byte("bad gzip: " + err.Error())
	}
	out, err := io.ReadAll(z)
	if err != nil {
		return []byte("bad gzip: " + err.Error())
	}
	return out
}

func ranges(raw []byte, boundary string) string {
	var out strings.Builder
	r := multipart.NewReader(bytes.NewReader(raw), boundary)
	for {
		part, err := r.NextPart()
		if err != nil {
			return out.String()
		}
		content, _ := io.ReadAll(part)
		fmt.Fprintf(&out, "%s: %s\n", part.Header.Get("Content-Range"), content)
	}
}

// flatten adds v below at. The text of an error is ours; its code is not.
func (a answer) flatten(at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		_, coded := v["code"]
		for k, e := range v {
			if coded && k == "message" {
				continue
			}
			a.flatten(at+"/"+k, e)
		}
	case []any:
		a[at] = "list of " + strconv.Itoa(len(v))
		for i, e := range v {
			a.flatten(at+"/"+strconv.Itoa(i), e)
		}
	default:
		a[at] = fmt.Sprint(v)
	}
}

// stream adds the envelopes of a stream, outputs put together.
func (a answer) stream(path, codec string, raw []byte) {
	outputs := map[string]string{}
	for len(raw) > 0 {
		flags, payload, rest, ok := cutEnvelope(raw)
		if !ok {
			a["trailing"] = fmt.Sprintf("%x", raw)
			break
		}
		raw = rest
		if flags&1 != 0 {
			payload = gunzip(payload)
		}
		if flags&2 != 0 {
			var end map[string]any
			if err := json.Unmarshal(payload, &end); err != nil {
				a["end"] = err.Error()
			}
			a["end"] = "there"
			// Our metadata is an addition.
			delete(end, "metadata")
			a.flatten("end", end)
			continue
		}
		var v any
		if codec == "json" {
			if err := json.Unmarshal(payload, &v); err != nil {
				a["event"] = err.Error()
				continue
			}
		} else {
			v = decodeProto(path, true, payload)
		}
		a.event(v, outputs)
	}
	for k, v := range outputs {
		if k == "pty" {
			v = onScreen(v)
		}
		a["output "+k] = v
	}
}

var escapes = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)

// onScreen is what is left of terminal output to read: how a shell draws its
// prompt again depends on its version, and on when the keys came.
func onScreen(s string) string {
	var out strings.Builder
	for line := range strings.SplitSeq(escapes.ReplaceAllString(s, ""), "\r\n") {
		out.WriteString(line[strings.LastIndexByte(line, '\r')+1:] + "\n")
	}
	return out.String()
}

func (a answer) event(v any, outputs map[string]string) {
	event, _ := v.(map[string]any)["event"].(map[string]any)
	for kind, content := range event {
		switch kind {
		case "data":
			for name, b := range content.(map[string]any) {
				outputs[name] += string(mustBase64(b.(string)))
			}
		case "keepalive":
			a["keepalive"] = "there"
		case "start":
			a["start"] = "there" // the pid is another one
		default:
			a.flatten(kind, content)
		}
	}
}

func cutEnvelope(raw []byte) (flags byte, payload, rest []byte, ok bool) {
	if len(raw) < 5 {
		return 0, nil, nil, false
	}
	n := binary.BigEndian.Uint32(raw[1:])
	if uint64(len(raw)-5) < uint64(n) {
		return 0, nil, nil, false
	}
	return raw[0], raw[5 : 5+n], raw[5+n:], true
}

// decodeProto gives the JSON form of a binary answer of the method at path.
func decodeProto(path string, stream bool, raw []byte) any {
	var m proto.Message
	switch method := path[strings.LastIndexByte(path, '/')+1:]; method {
	case "Start":
		m = &pb.StartResponse{}
	case "Connect":
		m = &pb.ConnectResponse{}
	case "List":
		m = &pb.ListResponse{}
	case "Stat", "MakeDir", "Move":
		m = &fspb.StatResponse{} // all three have the entry as field 1
	case "ListDir":
		m = &fspb.ListDirResponse{}
	default:
		if len(raw) > 0 {
			return "bytes of an unexpected message: " + method
		}
		return map[string]any{}
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return err.Error()
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err.Error()
	}
	return v
}

// recorded is the recorded meaning of exchange i.
func (r *recording) recorded(i int) answer {
	e := r.Exchanges[i]
	return meaning(e.Path, *e.Status, header(e.ResponseHeaders), e.Response.bytes())
}

// mask takes what differs from run to run out of both answers to exchange i.
func (r *recording) mask(i int, answers ...answer) {
	prefix := fmt.Sprintf("/exchanges/%d/", i)
	for _, p := range r.Volatile {
		p, ok := strings.CutPrefix(p, prefix)
		if !ok {
			continue
		}
		key := ""
		if name, ok := strings.CutPrefix(p, "responseHeaders/"); ok {
			key = "header " + name
		} else if rest, ok := strings.CutPrefix(p, "response/decoded"); ok {
			key = "body" + rest
		}
		for _, a := range answers {
			for k := range a {
				if key != "" && (k == key || strings.HasPrefix(k, key+"/")) {
					a[k] = "volatile"
				}
			}
		}
	}
}

// differing lists where two answers differ, sorted.
func differing(got, want answer) []string {
	keys := map[string]bool{}
	for k := range got {
		keys[k] = got[k] != want[k]
	}
	for k := range want {
		if _, ok := got[k]; !ok {
			keys[k] = true
		}
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if keys[k] {
			out = append(out, k)
		}
	}
	return out
}
