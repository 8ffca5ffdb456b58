// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	page := func(text string) Page {
		page, err := parse("a.md", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	tests := map[string]struct{ text, want string }{
		"in order":           {"```yaml\n# a.yaml\na: 1\n```\n\n```console\n$ x=$(cat a.yaml | tail -1)\n$ echo \"$x\"; pwd; echo 'a    b'; date\na: 1\n…\na b\n…\n```\n\n```console\n$ echo 10.0.70.9 is \"$x\"\n10.0.70.… is a: 1\n```\n", ""},
		"prints other text":  {"```console\n$ echo a\nb\n```\n", "a.md:2: $ echo a\nprints\na\n\nthe page says\nb"},
		"prints more":        {"```console\n$ printf 'a\\nb\\n'\na\n```\n", "prints\na\nb"},
		"prints nothing":     {"```console\n$ true\na\n```\n", "the page says\na"},
		"fails":              {"```console\n$ echo a; false\na\n$ echo b\nb\n```\n", "its last command: exit status 1"},
		"dots are no letter": {"```console\n$ echo 10x0\n10.0\n```\n", "the page says\n10.0"},
		"no command":         {"```console\na\n```\n", "output before the first command"},
		"nothing marked":     {"text\n", "has no commands"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), page(tc.text), t.TempDir(), nil)
			switch {
			case err == nil && tc.want != "":
				t.Errorf("no error, want %q", tc.want)
			case err != nil && (tc.want == "" || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
