// Command protogen writes the Go code of internal/pb from the .proto texts in
// internal/proto. It needs nothing but Go: the texts are compiled in this
// process and the plugins run from the versions that go.mod names, so the same
// checkout gives the same bytes on every machine.
//
// Usage, in the root of the module:
//
//	go run ./internal/proto/protogen          write what has changed
//	go run ./internal/proto/protogen -check   write nothing; exit 1 if something would change
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	module    = "github.com/agent-sandbox/sandbox-go"
	sourceDir = "internal/proto"
	outputDir = "internal/pb"
)

var plugins = []string{
	"google.golang.org/protobuf/cmd/protoc-gen-go",
	"connectrpc.com/connect/cmd/protoc-gen-connect-go",
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, _, stderr io.Writer) int {
	flags := flag.NewFlagSet("protogen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	check := flags.Bool("check", false, "write nothing; exit 1 if something would change")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintln(stderr, "protogen: takes no arguments; run it in the root of the module")
		return 2
	}
	files, err := generate(context.Background(), sourceDir)
	var stale []string
	if err == nil {
		stale, err = differing(files, ".")
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "protogen:", err)
		return 1
	case *check && len(stale) > 0:
		fmt.Fprintln(stderr, "protogen: out of date, run make generate:", strings.Join(stale, " "))
		return 1
	case *check:
		return 0
	}
	if err := write(stale, files, "."); err != nil {
		fmt.Fprintln(stderr, "protogen:", err)
		return 1
	}
	return 0
}

// generate returns the generated files by their path in the module.
func generate(ctx context.Context, dir string) (map[string][]byte, error) {
	names, err := sources(dir)
	if err != nil {
		return nil, err
	}
	req, err := request(ctx, dir, names)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, plugin := range plugins {
		resp, err := runPlugin(ctx, plugin, req)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
		for _, f := range resp.GetFile() {
			name := f.GetName()
			if f.GetInsertionPoint() != "" || !strings.HasPrefix(name, outputDir+"/") || !filepath.IsLocal(name) {
				return nil, fmt.Errorf("%s: unexpected output %q", plugin, name)
			}
			if _, dup := files[name]; dup {
				return nil, fmt.Errorf("%s: output %q was written before", plugin, name)
			}
			files[name] = []byte(f.GetContent())
		}
	}
	return files, nil
}

// sources lists the .proto files below dir, sorted, as import paths.
func sources(dir string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".proto") {
			names = append(names, path)
		}
		return err
	})
	if err == nil && len(names) == 0 {
		err = errors.New("no .proto files in " + dir)
	}
	return names, err
}

// request compiles the sources and packs them, imports first, for the plugins.
func request(ctx context.Context, dir string, names []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      proto.String("module=" + module),
	}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, fileProto(f))
	}
	for _, f := range compiled {
		add(f)
	}
	return req, nil
}

// fileProto prefers the descriptor that the compiler made itself: it holds the
// comments, which protodesc leaves out.
func fileProto(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if r, ok := f.(interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}); ok {
		return r.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(f)
}

func runPlugin(ctx context.Context, pkg string, req *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "run", pkg)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	resp := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(out.Bytes(), resp); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if resp.Error != nil {
		return nil, errors.New(resp.GetError())
	}
	return resp, nil
}

// differing lists, sorted, the files below root whose content is not that of
// files, and generated ones that no source stands behind any more.
func differing(files map[string][]byte, root string) ([]string, error) {
	var names []string
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil || !bytes.Equal(got, want) {
			names = append(names, name)
		}
	}
	err := filepath.WalkDir(filepath.Join(root, outputDir), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		_, keep := files[name]
		if !keep && (strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(name, ".connect.go")) {
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// write brings the named files to the content they have in files, or removes
// them when they have none.
func write(names []string, files map[string][]byte, root string) error {
	for _, name := range names {
		path := filepath.Join(root, filepath.FromSlash(name))
		content, ok := files[name]
		if !ok {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
