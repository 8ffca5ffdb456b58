// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	for _, test := range []struct {
		text string
		want Key
		err  string
	}{
		{text: "sts_ns1_web_web-0", want: Key{Type: "sts", Namespace: "ns1", App: "web", Pod: "web-0"}},
		{text: "dp_ns1_web_web-7c9-x2", want: Key{Type: "dp", Namespace: "ns1", App: "web", Pod: "web-7c9-x2"}},
		{text: "dp_ns1_web_", want: Key{Type: "dp", Namespace: "ns1", App: "web"}},
		{text: "tapp_ns1_demo_demo-1", want: Key{Type: "tapp", Namespace: "ns1", App: "demo", Pod: "demo-1"}},
		{text: "NULL_ns1_NULL_pod1", want: Key{Type: "NULL", Namespace: "ns1", App: "NULL", Pod: "pod1"}},
		{text: "pool__front_", want: Key{Pool: "front"}},
		{text: "pool__front_dp_ns1_web_web-7c9-x2", want: Key{Pool: "front", Type: "dp", Namespace: "ns1", App: "web", Pod: "web-7c9-x2"}},
		{text: "pool__front_sts_ns1_web_web-0", want: Key{Pool: "front", Type: "sts", Namespace: "ns1", App: "web", Pod: "web-0"}},
		{text: "pool__front_end_dp_ns1_web_web-0", err: "is not [pool__<pool>_]<type>_<namespace>_<app>_<pod>"},
		{text: "", err: "is not"},
		{text: "pool__", err: "names no pool"},
		{text: "pool___", err: "names no pool"},
		{text: "pool__front", err: "names no pool"},
		{text: "sts_ns1_web", err: "is not"},
		{text: "sts__web_web-0", err: "is not"},
		{text: "_ns1_web_web-0", err: "is not"},
		{text: "sts_ns1__web-0", err: "is not"},
		{text: "sts_ns1_web_web-0_x", err: "is not"},
	} {
		got, err := ParseKey(test.text)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: got %+v, %v, want an error with %q", test.text, got, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%q: got %+v, %v, want %+v", test.text, got, err, test.want)
		}
		if written(got) != test.text {
			t.Errorf("%+v is written %q, want %q", got, written(got), test.text)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"sts_ns1_web_web-0", "dp_ns1_web_", "pool__front_", "pool__front_dp_a_b_c", "____", "pool__a_b_dp_c_d_e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParseKey(text)
		if err != nil {
			if key != (Key{}) {
				t.Fatalf("%q: an error and %+v", text, key)
			}
			return
		}
		if written(key) != text {
			t.Fatalf("%q reads as %+v, which is written %q", text, key, written(key))
		}
		if key.Pool == "" && (key.Type == "" || key.Namespace == "" || key.App == "") {
			t.Fatalf("%q names nobody: %+v", text, key)
		}
	})
}

// written is the inverse of [ParseKey].
func written(k Key) string {
	var text strings.Builder
	if k.Pool != "" {
		text.WriteString(poolMark + k.Pool + "_")
	}
	if k.Type != "" {
		text.WriteString(k.Type + "_" + k.Namespace + "_" + k.App + "_" + k.Pod)
	}
	return text.String()
}
