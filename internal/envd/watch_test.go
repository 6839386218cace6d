package envd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func watchEvent(m *filesystem.WatchDirResponse) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return envelope(0, b)
}

var (
	watchSet   = watchEvent(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}})
	watchAlive = watchEvent(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
)

func changed(name string, kind filesystem.EventType) []byte {
	return watchEvent(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{
		Filesystem: &filesystem.FilesystemEvent{Name: name, Type: kind}}})
}

// changesOf watches until the watch ends.
func changesOf(ctx context.Context, c *Client) ([]Change, error) {
	w, err := c.Watch(ctx, "/w", WatchOptions{Recursive: true})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	var out []Change
	for {
		ch, err := w.Next()
		if err != nil {
			if _, again := w.Next(); again != err {
				return out, errors.New("the second error is another one")
			}
			return out, err
		}
		out = append(out, ch)
	}
}

// A watch never ends quietly, whatever the server does.
func TestWatchEnds(t *testing.T) {
	made := changed("f", filesystem.EventType_EVENT_TYPE_CREATE)
	for _, c := range []struct {
		name  string
		parts [][]byte
		n     int
		code  errdefs.Code
	}{
		{"in order", [][]byte{watchSet, made, trailer("{}")}, 1, "E5003"},
		{"cut", [][]byte{watchSet, made}, 1, "E5003"},
		{"cut in an event", [][]byte{watchSet, made, made[:5]}, 1, "E5003"},
		{"cut before it began", nil, 0, "E5003"},
		{"at once", [][]byte{trailer("{}")}, 0, "E5003"},
		{"without a start", [][]byte{made, trailer("{}")}, 0, "E3006"},
		{"alive before the start", [][]byte{watchAlive, watchSet, made}, 0, "E3006"},
		{"two starts", [][]byte{watchSet, watchSet, made}, 0, "E3006"},
		{"unknown event", [][]byte{watchSet, watchEvent(&filesystem.WatchDirResponse{}), watchAlive, made, trailer("{}")}, 1, "E5003"},
		{"missing", [][]byte{trailer(`{"error":{"code":"not_found","message":"path /w not found"}}`)}, 0, "E4001"},
		{"file", [][]byte{trailer(`{"error":{"code":"invalid_argument","message":"path /w not a directory: %!w(<nil>)"}}`)}, 0, "E4003"},
		{"closed", [][]byte{trailer(`{"error":{"code":"permission_denied","message":"no"}}`)}, 0, "E4002"},
		{"cannot", [][]byte{trailer(`{"error":{"code":"unimplemented","message":"no"}}`)}, 0, "E8004"},
		{"token", [][]byte{trailer(`{"error":{"code":"unauthenticated","message":"no"}}`)}, 0, "E1006"},
		{"ours missed some", [][]byte{watchSet, made, trailer(`{"error":{"code":"resource_exhausted","message":"changes were missed: x"},"metadata":{"sandbox-error-code":["E4007"]}}`)}, 1, "E4007"},
		{"theirs missed some", [][]byte{watchSet, made, trailer(`{"error":{"code":"internal","message":"watcher error: fsnotify: queue or buffer overflow"}}`)}, 1, "E4007"},
		{"shutting down", [][]byte{watchSet, trailer(`{"error":{"code":"unavailable","message":"x"}}`)}, 0, "E5003"},
		{"garbage", [][]byte{watchSet, envelope(0, []byte("\xff\xff\xff"))}, 0, "E3006"},
		{"too large", [][]byte{watchSet, {0, 0xff, 0xff, 0xff, 0xff}}, 0, "E3006"},
		{"no trailer in JSON", [][]byte{watchSet, trailer("{")}, 0, "E3006"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := changesOf(t.Context(), clientOf(t, streaming(c.parts...), Options{}))
			if len(got) != c.n || errdefs.CodeOf(err) != c.code {
				t.Errorf("got %d changes, %v; want %d, %s", len(got), err, c.n, c.code)
			}
		})
	}
	for name, f := range map[string]http.HandlerFunc{
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Write([]byte("<html>"))
		},
		"gateway": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusBadGateway) },
	} {
		if _, err := changesOf(t.Context(), clientOf(t, f, Options{})); errdefs.CodeOf(err).Class() != "E5000" && errdefs.CodeOf(err) != "E3006" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// stalled sends parts and then nothing, until the client leaves.
func stalled(left chan<- struct{}, parts ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		streaming(parts...)(w, r)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}
}

func TestWatchIsBoundedByLifeSigns(t *testing.T) {
	left := make(chan struct{})
	c := clientOf(t, stalled(left, watchSet), Options{KeepAlive: 300 * time.Millisecond})
	if _, err := changesOf(t.Context(), c); errdefs.CodeOf(err) != "E5003" {
		t.Errorf("silent: got %v", err)
	}
	<-left
	left = make(chan struct{})
	c = clientOf(t, stalled(left), Options{RequestTimeout: 30 * time.Millisecond})
	if _, err := changesOf(t.Context(), c); errdefs.CodeOf(err) != "E5002" {
		t.Errorf("without a start: got %v", err)
	}
	<-left
}

func TestWatchEndsWithItsContext(t *testing.T) {
	left := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	c := clientOf(t, stalled(left, watchSet), Options{})
	w, err := c.Watch(ctx, "/w", WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cancel()
	if _, err := w.Next(); errdefs.CodeOf(err) != "E5004" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-left
	left = make(chan struct{})
	c = clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		if h := r.Header.Get("Connect-Timeout-Ms"); h != "" {
			t.Errorf("the server is told to end after %s ms", h)
		}
		stalled(left, watchSet)(w, r)
	}, Options{})
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := changesOf(ctx, c); errdefs.CodeOf(err) != "E5002" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	<-left
}

// What envd 0.6.13 said when it was recorded.
func TestWatchOfRecordings(t *testing.T) {
	files, err := filepath.Glob("../../runtime/server/testdata/watches/*watch*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings", err)
	}
	kinds := map[ChangeKind]string{
		Created: "EVENT_TYPE_CREATE", Written: "EVENT_TYPE_WRITE", Removed: "EVENT_TYPE_REMOVE", Renamed: "EVENT_TYPE_RENAME", ChangedMode: "EVENT_TYPE_CHMOD",
	}
	n := 0
	for _, file := range files {
		for _, frames := range recordedWatches(t, file) {
			n++
			var want []string
			var parts [][]byte
			code := errdefs.Code("E5003") // of those that the recording client left
			for _, f := range frames {
				if f.Flags&2 != 0 {
					parts = append(parts, envelope(2, f.Decoded))
					code = map[bool]errdefs.Code{true: "E4001"}[strings.Contains(string(f.Decoded), "not_found")]
					if strings.Contains(string(f.Decoded), "invalid_argument") {
						code = "E4003"
					}
					if strings.Contains(string(f.Decoded), "deadline") {
						code = "E5002"
					}
					continue
				}
				m := &filesystem.WatchDirResponse{}
				if err := protojson.Unmarshal(f.Decoded, m); err != nil {
					t.Fatal(err)
				}
				parts = append(parts, watchEvent(m))
				if e := m.GetFilesystem(); e != nil {
					want = append(want, e.GetType().String()+" "+e.GetName()+" "+e.GetEntry().GetPermissions())
				}
			}
			changes, err := changesOf(t.Context(), clientOf(t, streaming(parts...), Options{}))
			var got []string
			for _, ch := range changes {
				text := kinds[ch.Kind] + " " + ch.Name + " "
				if ch.Entry != nil {
					text += fs.FileMode.String(ch.Entry.Mode)
				}
				got = append(got, text)
			}
			if !slices.Equal(got, want) || errdefs.CodeOf(err) != code {
				t.Errorf("%s: got %q, %v; want %q, %s", file, got, err, want, code)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d watches were recorded", n)
	}
}

type recordedFrame struct {
	Flags   int
	Decoded json.RawMessage
}

func recordedWatches(t *testing.T, file string) [][]recordedFrame {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		Exchanges []struct {
			Path     string
			Response struct{ Frames []recordedFrame }
		}
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		t.Fatal(err)
	}
	var out [][]recordedFrame
	for _, e := range rec.Exchanges {
		if strings.HasSuffix(e.Path, "/WatchDir") {
			out = append(out, e.Response.Frames)
		}
	}
	return out
}

func FuzzWatch(f *testing.F) {
	f.Add(slices.Concat(watchSet, changed("f", filesystem.EventType_EVENT_TYPE_CREATE), trailer("{}")))
	f.Add(slices.Concat(watchSet, watchAlive, envelope(1, []byte("x"))))
	f.Add([]byte("<html>"))
	var answer []byte
	c := clientOf(f, func(w http.ResponseWriter, r *http.Request) { streaming(answer)(w, r) }, Options{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer = raw
		changes, err := changesOf(t.Context(), c)
		if err == nil || errdefs.CodeOf(err) == "" {
			t.Errorf("%s: ended with %v", base64.StdEncoding.EncodeToString(raw), err)
		}
		if len(changes) > len(raw) {
			t.Errorf("%d changes in %d bytes", len(changes), len(raw))
		}
	})
}
