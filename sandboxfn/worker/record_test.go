package worker

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

const testMark = "0123456789abcdef0123456789abcdef"

func record(kind RecordKind, text string) string {
	n := len(text)
	return string([]byte{byte(kind), byte(n >> 16), byte(n >> 8), byte(n)}) + text
}

// gather feeds data in pieces of size bytes.
func gather(data []byte, size int) (out [RecordStderr + 1]string, r *Records, err error) {
	var bufs [RecordStderr + 1]bytes.Buffer
	r = NewRecords(testMark)
	for b := range slices.Chunk(data, size) {
		err = r.Feed(b, func(kind RecordKind, b []byte) error {
			bufs[kind].Write(b)
			return nil
		})
		if err != nil {
			break
		}
	}
	for i := range bufs {
		out[i] = bufs[i].String()
	}
	return out, r, err
}

func TestRecords(t *testing.T) {
	before := strings.Repeat("printed by an init ", 2000) + testMark[:20] + "\n" + testMark + "x\n" + testMark
	large := strings.Repeat("x", maxRecord/8)
	data := []byte(before + testMark + "\n" + record(RecordStdout, testMark+"\n") + record(RecordFrames, "\x00\n") + record(RecordStderr, "e") + record(RecordStdout, large))
	for _, size := range []int{1, 3, 4, 7, 1000, len(data)} {
		out, r, err := gather(data, size)
		if err != nil || !r.Started() {
			t.Fatalf("in pieces of %d: %v", size, err)
		}
		if out[RecordStdout] != testMark+"\n"+large || out[RecordFrames] != "\x00\n" || out[RecordStderr] != "e" {
			t.Errorf("in pieces of %d: %.100q", size, out)
		}
		if got := string(r.Before()); got != before[len(before)-maxBefore:] {
			t.Errorf("in pieces of %d: %d bytes before the mark: …%q", size, len(got), got[max(0, len(got)-80):])
		}
	}
}

func TestRecordsRefused(t *testing.T) {
	for name, rest := range map[string]string{
		"kind 0":     "\x00\x00\x00\x01x",
		"kind 4":     "\x04\x00\x00\x01x",
		"no bytes":   "\x01\x00\x00\x00",
		"too long":   "\x01\x04\x00\x01",
		"plain text": "hello, world\n",
	} {
		if _, _, err := gather([]byte(testMark+"\n"+rest), 1); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop := errors.New("stop")
	if err := NewRecords(testMark).Feed([]byte(testMark+"\n"+record(RecordFrames, "x")), func(RecordKind, []byte) error { return stop }); err != stop {
		t.Errorf("got %v", err)
	}
}

// FuzzRecords checks that it does not matter how a stream is cut.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(testMark+"\n"+record(RecordFrames, "abc")+record(RecordStderr, "d")), 3)
	f.Add([]byte("noise"+testMark+testMark+"\n\x01"), 1)
	f.Add([]byte(testMark+"\n\x09\x00\x00\x01x"), 2)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		size = max(1, size%64)
		want, wr, wantErr := gather(data, max(1, len(data)))
		got, gr, gotErr := gather(data, size)
		if want != got || wr.Started() != gr.Started() || wantErr != gotErr || !bytes.Equal(wr.Before(), gr.Before()) && wr.Started() {
			t.Errorf("cut at %d: %q %v, else %q %v", size, got, gotErr, want, wantErr)
		}
	})
}
