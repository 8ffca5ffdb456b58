// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Of a configuration that encoding/json can decode SocketOf returns the same.
func FuzzSocketOf(f *testing.F) {
	for _, config := range []string{
		`{"cniVersion":"1.1.0","socket":"/x"}`, `{"a":{"socket":"/no"},"b":["socket",{"socket":1}],"socket" : "\/run\u002fx\\\/"}`,
		`{"socket":null}`, `{"socket":5}`, `{"name":"socket","x":"\"socket\":\"/y\""}`, `["socket"]`, `"socket"`, `{`, ``, `{"socket":"/a","socket":"/b"}`,
		`{"socket":""}`, "{\"\x00\":1}", `{"socket":{"socket":"/x"}}`,
	} {
		f.Add([]byte(config))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		got, err := SocketOf(config)
		var object map[string]json.RawMessage
		if json.Unmarshal(config, &object) != nil {
			return // the agent says so
		}
		want := ""
		if raw := object["socket"]; raw != nil {
			if json.Unmarshal(raw, &want) != nil {
				if err == nil {
					t.Errorf("SocketOf(%q) = %q, it is no string", config, got)
				}
				return
			}
		}
		if want == "" {
			want = SocketPath
		}
		// No runtime has a path with bytes that encoding/json replaces.
		if err == nil && got != want && !strings.Contains(want, "\ufffd") {
			t.Errorf("SocketOf(%q) = %q, want %q", config, got, want)
		}
		if err != nil && object != nil && !bytes.Contains(config, []byte(`\u`)) && !strings.Contains(want, "\ufffd") {
			t.Errorf("SocketOf(%q): %v", config, err)
		}
	})
}

func FuzzQuote(f *testing.F) {
	f.Add("a \"b\" \\ \n \x01 ü \u2028 \xff")
	f.Fuzz(func(t *testing.T, text string) {
		var got string
		if err := json.Unmarshal([]byte(Quote(text)), &got); err != nil || got != strings.ToValidUTF8(text, "\ufffd") && len(got) < len(text) {
			t.Errorf("Quote(%q) = %s: %q, %v", text, Quote(text), got, err)
		}
	})
}
