// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/oapi-codegen/runtime" // the client imports it

	"github.com/berth-dev/berth/test/deploy"
)

// generator makes a client from a document.
const generator = "go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.7.2"

// useClient generates a client from the document that the console serves, compiles it, and reads
// the pools and their addresses with it.
func useClient(c *console) {
	t := c.w.T
	t.Helper()
	dir := t.TempDir()
	text, generated, program := filepath.Join(dir, "openapi.yaml"), filepath.Join(dir, "client.gen.go"), filepath.Join(dir, "client")
	if err := os.WriteFile(text, c.get(prefix+"/openapi.yaml").body, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root, "test/console/testdata/client")
	run := func(words ...string) []byte {
		t.Helper()
		command := exec.CommandContext(c.w.Ctx, words[0], words[1:]...)
		command.Dir = source
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
		}
		return out
	}
	run(append(strings.Fields(generator), "-generate=types,client", "-package=main", "-o="+generated, text)...)
	// To the compiler the client is in the folder of the program that uses it.
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(source, "client.gen.go"): generated}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	run("go", "build", "-overlay="+overlayFile, "-o="+program, ".")
	got := strings.Fields(string(run(program, c.root+prefix, c.token)))
	var want []string
	for _, p := range read[poolList](c, "/pools").Pools {
		want = append(want, fmt.Sprintf("%s:%d/%d", p.Name, p.Held, p.Capacity))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the generated client reads %v, want %v", got, want)
	}
}
