// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An object of Galaxy is named after its address, which is IPv4.
func TestAddr(t *testing.T) {
	for name, ok := range map[string]bool{"10.0.70.2": true, "2001:db8::2": false, "10.0.70": false, "": false} {
		addr, err := (&FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}}).Addr()
		switch {
		case ok && (err != nil || addr.String() != name):
			t.Errorf("%q: got %s, %v", name, addr, err)
		case !ok && (err == nil || addr.IsValid() || !strings.Contains(err.Error(), "is not an IPv4 address")):
			t.Errorf("%q: got %s, %v, want an error", name, addr, err)
		}
	}
}

func TestAttributes(t *testing.T) {
	for text, want := range map[string]Attributes{
		"":                                  {},
		`{"NodeName":"node1","Uid":"u"}`:    {NodeName: "node1", PodUID: "u"},
		`{"NodeName":"node1","Other":true}`: {NodeName: "node1"},
	} {
		if got, err := (&FloatingIP{Spec: FloatingIPSpec{Attribute: text}}).Attributes(); err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"node1", `{"NodeName":1,"Uid":"u"}`} {
		if got, err := (&FloatingIP{Spec: FloatingIPSpec{Attribute: text}}).Attributes(); err == nil || got != (Attributes{}) {
			t.Errorf("%q: got %+v, %v, want an error", text, got, err)
		}
	}
}

func TestReserved(t *testing.T) {
	for _, test := range []struct {
		labels map[string]string
		want   bool
	}{
		{nil, false},
		{map[string]string{"name": "reserved"}, false},
		{map[string]string{LabelReserved: ""}, true},
		{map[string]string{LabelReserved: "printer"}, true},
	} {
		if got := (&FloatingIP{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}}).Reserved(); got != test.want {
			t.Errorf("labels %v: got %v", test.labels, got)
		}
	}
}
