// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func sample() *Answer {
	table := NewTable("Name", "Use", "+More")
	table.Add("web", 7, "x")
	table.Add("db", "", "y")
	return &Answer{
		Table: table, Kind: "PoolList", Content: map[string]any{"items": []map[string]any{{"name": "web"}, {"name": "db"}}},
		Names: []string{"ippool.berth.dev/web", "ippool.berth.dev/db"},
		Text:  func(out io.Writer, paint Paint) { _, _ = io.WriteString(out, paint.Red("that is all")+"\n") },
	}
}

func TestFormats(t *testing.T) {
	for flags, want := range map[string]string{
		"":                                     "NAME   USE\nweb    7\ndb     -\nthat is all\n",
		"--no-headers":                         "web   7\ndb    -\n",
		"-owide":                               "NAME   USE   MORE\nweb    7     x\ndb     -     y\nthat is all\n",
		"-oname":                               "ippool.berth.dev/web\nippool.berth.dev/db\n",
		"-oyaml":                               "apiVersion: cli.berth.dev/v1alpha1\nitems:\n- name: web\n- name: db\nkind: PoolList\n",
		"-ojsonpath={.items[*].name}{\"\\n\"}": "web db\n",
		"-ogo-template={{range .items}}{{.name}},{{end}}": "web,db,",
	} {
		var out strings.Builder
		format := NewFormat()
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		format.AddFlags(set)
		if err := set.Parse(strings.Split(flags, "\x00")); err != nil {
			t.Fatal(err)
		}
		if err := format.Check(); err != nil {
			t.Fatal(err)
		}
		if err := format.Print(&out, sample()); err != nil || out.String() != want {
			t.Errorf("%s: %v, printed\n%q, want\n%q", flags, err, out.String(), want)
		}
	}
}

// The rows of a watch have one line of headers above them, and stand in its columns.
func TestPrintAgain(t *testing.T) {
	var out strings.Builder
	format := NewFormat()
	for range 2 {
		again := sample()
		again.Text = nil
		if err := format.Print(&out, again); err != nil {
			t.Fatal(err)
		}
	}
	if want := "NAME   USE\nweb    7\ndb     -\nweb    7\ndb     -\n"; out.String() != want {
		t.Errorf("printed\n%s, want\n%s", out.String(), want)
	}
}

func TestUnknownFormat(t *testing.T) {
	format := NewFormat()
	*format.print.OutputFormat = "csv"
	if err := format.Check(); err == nil || err.Error() != "-o csv: there is no such format: use wide, json, yaml, name, jsonpath=… or go-template=…" {
		t.Errorf("error is %v", err)
	}
}

func TestPaint(t *testing.T) {
	if got := Paint(true).Red("x") + Paint(true).Green("") + Paint(false).Red("y") + PaintOf(io.Discard).Red("z"); got != "\x1b[31mx\x1b[0myz" {
		t.Errorf("painted %q", got)
	}
}

// The documents of a watch are apart.
func TestPrintYAMLAgain(t *testing.T) {
	var out strings.Builder
	format := NewFormat()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	format.AddFlags(set)
	if err := set.Parse([]string{"-oyaml"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := format.Print(&out, sample()); err != nil {
			t.Fatal(err)
		}
	}
	if documents := strings.Split(out.String(), "---\n"); len(documents) != 2 || documents[0] != documents[1] {
		t.Errorf("printed %q", out.String())
	}
}
