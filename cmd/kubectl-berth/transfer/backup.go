// SPDX-License-Identifier: Apache-2.0

// Package transfer has the commands that save all of Berth's objects, create them again
// from a backup, and create them from Galaxy's. Packages backup and galaxyimport plan the
// writes; this package reads, prints and applies them.
package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
)

const backupLong = `Saves all of Berth's objects but NodeAssignments, which berth-controller makes anew: pools,
claims, profiles, routers, and the addresses with who has them (held, retained, reserved or
at rest). "kubectl berth restore" creates them again, in this
cluster or in a rebuilt one.

Each kind is saved as of one moment, addresses first, so that the backup also has the
objects that an address refers to. You need not stop Berth's programs.`

const backupExamples = `  # To a file (on failure no incomplete file is left)
  kubectl berth backup -f berth.yaml

  # To stdout, for another program
  kubectl berth backup -o json | jq -r '.items[].spec.address // empty'`

// NewBackup returns the command backup.
func NewBackup() command.Command {
	format, file := "yaml", "-"
	return command.Command{
		Use: "backup", Short: "Saves pools, claims and addresses", Long: backupLong, Example: backupExamples,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&format, "output", "o", format, "Output format: yaml or json.")
			flags.StringVarP(&file, "filename", "f", file, "File to write; - is stdout.")
		},
		CompleteFlags: map[string]command.Completion{"output": command.Words(formats...)},
		Prepare: func(*command.Call) error {
			if !slices.Contains(formats, format) {
				return fmt.Errorf("--output: %q is neither yaml nor json: write the file with -f", format)
			}
			return nil
		},
		Run: func(ctx context.Context, call *command.Call) error {
			return runBackup(ctx, call, file, format == "json")
		},
	}
}

// formats in which objects are printed.
var formats = []string{"yaml", "json"}

func runBackup(ctx context.Context, call *command.Call, name string, asJSON bool) error {
	c, end, err := connect(call)
	if err != nil {
		return err
	}
	defer end()
	objects, err := c.readBerth(ctx, backup.Kinds())
	if err != nil {
		return err
	}
	objects = backup.Clean(objects)
	write := func(out io.Writer) error { return writeBackup(out, objects, asJSON, call.Config.Host, time.Now()) }
	if name == "-" {
		return write(call.Out)
	}
	if err := writeFile(name, write); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	fmt.Fprintf(call.ErrOut, "Saved %s.\n", objects)
	return nil
}

// writeFile writes a file that is complete or, if anything fails, as it was.
func writeFile(name string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the error says more
		}
	}()
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// writeBackup writes a document for each object, or a list of them, in the order pools, claims, addresses, others.
func writeBackup(out io.Writer, objects *backup.Objects, asJSON bool, host string, now time.Time) error {
	all := make([]map[string]any, 0, objects.Len())
	for _, object := range objects.All() {
		fields, err := plan.Fields(object)
		if err != nil {
			return err
		}
		all = append(all, fields.Object)
	}
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "    ")
		return encoder.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": all})
	}
	fmt.Fprintf(out, "# Berth's objects of %s at %s: %s.\n# Restore them with: kubectl berth restore -f FILE\n", host, now.UTC().Format(time.RFC3339), objects)
	for _, fields := range all {
		text, err := yaml.Marshal(fields)
		if err != nil {
			return fmt.Errorf("encode an object: %w", err)
		}
		if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
