//go:build linux

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
)

const benchSize = 100 << 20

// BenchmarkTransfer moves 100 MiB each way through the server and, in turns, with
// a plain copy through a socket of the same kind, from and to files as well. The
// metric ratio is the speed against that copy: 1 would be the same.
func BenchmarkTransfer(b *testing.B) {
	for _, network := range []string{"unix", "tcp"} {
		b.Run(network+"/upload", func(b *testing.B) {
			r, dir := benchRig(b, network)
			source := benchFile(b, dir)
			benchPair(b, func() { plainCopy(b, network, dir, source, dir+"/plain") }, func() {
				f, err := os.Open(source)
				check(b, err)
				defer f.Close()
				req, err := http.NewRequestWithContext(b.Context(), "POST", "http://sandbox/files?path="+url.QueryEscape(dir+"/up"), f)
				check(b, err)
				req.ContentLength = benchSize
				req.Header.Set("Content-Type", "application/octet-stream")
				resp, err := r.http.Do(req)
				check(b, err)
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					b.Fatal(resp.Status)
				}
			})
		})
		b.Run(network+"/download", func(b *testing.B) {
			r, dir := benchRig(b, network)
			source := benchFile(b, dir)
			benchPair(b, func() { plainCopy(b, network, dir, source, dir+"/plain") }, func() {
				resp, err := r.http.Get("http://sandbox/files?path=" + url.QueryEscape(source))
				check(b, err)
				defer resp.Body.Close()
				f, err := os.Create(dir + "/down")
				check(b, err)
				defer f.Close()
				n, err := io.CopyBuffer(onlyWriter{f}, resp.Body, make([]byte, 256<<10))
				if err != nil || n != benchSize {
					b.Fatal(n, err)
				}
			})
		})
	}
}

// benchRig is a server on a socket of that kind, and a folder in memory.
func benchRig(b *testing.B, network string) (*rig, string) {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		dir = b.TempDir()
	} else {
		b.Cleanup(func() { os.RemoveAll(dir) })
	}
	r := newRig(b, nil)
	transport := r.http.Transport.(withToken).next.(*http.Transport)
	transport.ReadBufferSize, transport.WriteBufferSize = 64<<10, 64<<10 // as our client's
	if network == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(b, err)
		go r.Serve(l)
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		}
	}
	return r, dir
}

func benchFile(b *testing.B, dir string) string {
	b.Helper()
	f, err := os.Create(dir + "/source")
	check(b, err)
	_, err = io.Copy(f, io.LimitReader(zeros{}, benchSize))
	check(b, err, f.Close())
	return f.Name()
}

// benchPair runs both in turns, so that they meet the same machine, and reports
// how they compare.
func benchPair(b *testing.B, plain, served func()) {
	b.SetBytes(benchSize)
	plain()
	served()
	var direct, through time.Duration
	for b.Loop() {
		began := time.Now()
		plain()
		middle := time.Now()
		served()
		direct += middle.Sub(began)
		through += time.Since(middle)
	}
	b.ReportMetric(float64(direct)/float64(through), "ratio")
	b.ReportMetric(float64(benchSize)*float64(b.N)/direct.Seconds()/1e6, "MB/s-plain")
	b.ReportMetric(float64(benchSize)*float64(b.N)/through.Seconds()/1e6, "MB/s-served")
}

// plainCopy sends a file through a new socket into another file, with buffers of
// 256 KiB at both ends.
func plainCopy(b *testing.B, network, dir, from, to string) {
	b.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(dir, fmt.Sprint("s", time.Now().UnixNano()))
	}
	l, err := net.Listen(network, address)
	check(b, err)
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			c, err := net.Dial(network, l.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			f, err := os.Open(from)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.CopyBuffer(onlyWriter{c}, onlyReader{f}, make([]byte, 256<<10))
			return err
		}()
	}()
	c, err := l.Accept()
	check(b, err)
	defer c.Close()
	f, err := os.Create(to)
	check(b, err)
	defer f.Close()
	n, err := io.CopyBuffer(onlyWriter{f}, onlyReader{c}, make([]byte, 256<<10))
	check(b, err, <-sent)
	if n != benchSize {
		b.Fatalf("got %d bytes", n)
	}
}

// onlyWriter and onlyReader keep the kernel from moving the bytes by itself, so
// that a plain copy is one.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// BenchmarkWatch reports 10,000 new files to a client.
func BenchmarkWatch(b *testing.B) {
	r := newRig(b, nil)
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		w := r.watch(b, &pb.WatchDirRequest{Path: dir, Recursive: true})
		b.StartTimer()
		for i := range 10_000 {
			check(b, write(fmt.Sprintf("%s/%d", dir, i), "x"))
		}
		w.until(b, "the last file", func() bool { return w.count() >= 20_001 })
		b.StopTimer()
		w.stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/10_000, "µs/file")
}
