// SPDX-License-Identifier: Apache-2.0

// Protoc generates Go code from .proto files, with plugins of protoc. It is a shell around
// protocompile, which is the compiler in buf: buf itself takes minutes to build on a new
// machine.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	root := flag.String("root", ".", "folder that the names of the files begin in; the code goes beside them")
	var plugins []string
	flag.Func("plugin", "command of a plugin, with its arguments; again for another plugin", func(command string) error {
		plugins = append(plugins, command)
		return nil
	})
	flag.Parse()
	if len(plugins) == 0 || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "protoc -plugin COMMAND [-root FOLDER] FILE…: name a plugin and .proto files")
		os.Exit(1)
	}
	if err := generate(context.Background(), *root, plugins, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// generate compiles files, and writes beside each the code that the plugins make of it.
func generate(ctx context.Context, root string, plugins, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{root}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files, Parameter: proto.String("paths=source_relative")}
	for _, file := range compiled {
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(file))
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	for _, plugin := range plugins {
		response, err := run(ctx, plugin, input)
		if err != nil {
			return fmt.Errorf("run %s: %w", plugin, err)
		}
		for _, file := range response.GetFile() {
			if err := os.WriteFile(filepath.Join(root, file.GetName()), []byte(file.GetContent()), 0o644); err != nil {
				return fmt.Errorf("write the code: %w", err)
			}
		}
	}
	return nil
}

// run gives a plugin an encoded request, and returns its response. Plugins read one and
// write the other, and report errors in .proto files in it (plugin.proto).
func run(ctx context.Context, plugin string, input []byte) (*pluginpb.CodeGeneratorResponse, error) {
	words := strings.Fields(plugin)
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return nil, fmt.Errorf("decode the response: %w", err)
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return &response, nil
}
