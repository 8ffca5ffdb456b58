// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server accepts these BGPPeers, or refuses them with these messages.
func TestBGPPeerValidation(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	type fields = map[string]any
	const asns, address, prefixes, communities, hold = "from 1 to 4294967294", "address without a prefix length", "a CIDR without host bits", "every community must be", "whole seconds from 3s"
	const interval, packets = "must be from 50ms to 60s", "a number of packets from 2 to 255"
	export := func(with fields) fields {
		e := fields{"prefixes": []any{"10.99.0.0/24"}}
		maps.Copy(e, with)
		return fields{"export": []any{e}}
	}
	for name, c := range map[string]struct {
		change fields // of a BGPPeer that is accepted
		want   string // in the message; empty: accepted
	}{
		"least": {nil, ""},
		"all": {fields{
			"nodeSelector": fields{"matchLabels": fields{"rack": "1"}}, "localASN": int64(4294967294), "peer": fields{"address": "2001:db8::1", "port": int64(65535), "asn": int64(1)}, "source": "2001:db8:255::/64", "multihop": int64(255), "holdTime": "1m30s",
			"gracefulRestart": fields{"time": "4095s"}, "bfd": fields{"interval": "50ms", "multiplier": int64(255)}, "export": []any{fields{"prefixes": []any{"10.99.0.0/16", "2001:db8:99::/48"}, "communities": []any{"65200:70", "65535:65535", "4294967295:0:1"}, "newest": true}},
		}, ""},
		"no ASN":             {fields{"localASN": nil}, "spec.localASN: Required"},
		"ASN 0":              {fields{"localASN": int64(0)}, asns},
		"ASN of nobody":      {fields{"localASN": int64(4294967295)}, asns},
		"router's ASN":       {fields{"peer": fields{"address": "10.11.0.1", "asn": int64(-1)}}, asns},
		"router's name":      {fields{"peer": fields{"address": "tor-1", "asn": int64(65101)}}, address},
		"prefix":             {fields{"peer": fields{"address": "10.11.0.1/24", "asn": int64(65101)}}, address},
		"link-local":         {fields{"peer": fields{"address": "fe80::1", "asn": int64(65101)}}, address},
		"interface":          {fields{"peer": fields{"interface": "eth0.42", "port": int64(1179)}, "bfd": fields{}}, ""},
		"interface and ASN":  {fields{"peer": fields{"interface": "swp1", "asn": int64(65101)}, "multihop": int64(1)}, ""},
		"two routers":        {fields{"peer": fields{"interface": "eth0", "address": "10.11.0.1", "asn": int64(65101)}}, "either address or interface"},
		"no router":          {fields{"peer": fields{"asn": int64(65101)}}, "either address or interface"},
		"no router's ASN":    {fields{"peer": fields{"address": "10.11.0.1"}}, "must have asn"},
		"link and source":    {fields{"peer": fields{"interface": "eth0"}, "source": "2001:db8:255::/64"}, "remove spec.source"},
		"link and hops":      {fields{"peer": fields{"interface": "eth0"}, "multihop": int64(2)}, "remove spec.source"},
		"no link's name":     {fields{"peer": fields{"interface": "fe80::1%eth0"}}, "the name of a network interface"},
		"long link's name":   {fields{"peer": fields{"interface": "ethernet12345678"}}, "may not be more than 15"},
		"no port":            {fields{"peer": fields{"address": "10.11.0.1", "port": int64(65536), "asn": int64(65101)}}, "a port from 1 to 65535"},
		"source's host bits": {fields{"source": "10.255.0.1/24"}, "a CIDR without host bits"},
		"no hops":            {fields{"multihop": int64(0)}, "number of hops from 1"},
		"many hops":          {fields{"multihop": int64(256)}, "number of hops from 1"},
		"short hold":         {fields{"holdTime": "2s"}, hold},
		"parts of a second":  {fields{"holdTime": "9500ms"}, hold},
		"long hold":          {fields{"holdTime": "65536s"}, hold},
		"restart":            {fields{"gracefulRestart": fields{"time": "0s"}}, "whole seconds from 1s to 4095s"},
		"long restart":       {fields{"gracefulRestart": fields{"time": "4096s"}}, "whole seconds from 1s to 4095s"},
		"BFD as it is":       {fields{"bfd": fields{}}, ""},
		"fast BFD":           {fields{"bfd": fields{"interval": "49ms"}}, interval},
		"slow BFD":           {fields{"bfd": fields{"interval": "61s"}}, interval},
		"one packet":         {fields{"bfd": fields{"multiplier": int64(1)}}, packets},
		"many packets":       {fields{"bfd": fields{"multiplier": int64(256)}}, packets},
		"no export":          {fields{"export": nil}, "spec.export: Required"},
		"empty export":       {fields{"export": []any{}}, "at least 1 item"},
		"no prefix":          {export(fields{"prefixes": []any{}}), "at least 1 item"},
		"host bits":          {export(fields{"prefixes": []any{"10.99.0.1/24"}}), prefixes},
		"an address":         {export(fields{"prefixes": []any{"10.99.0.1"}}), prefixes},
		"one number":         {export(fields{"communities": []any{"65200"}}), communities},
		"four numbers":       {export(fields{"communities": []any{"1:2:3:4"}}), communities},
		"words":              {export(fields{"communities": []any{"no-export"}}), communities},
		"great community":    {export(fields{"communities": []any{"65536:1"}}), communities},
		"greater community":  {export(fields{"communities": []any{"1:2:4294967296"}}), communities},
		"no large community": {export(fields{"communities": []any{"4294967296:2:3"}}), communities},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			objects, err := dynamic.NewForConfig(w.Config)
			if err != nil {
				t.Fatal(err)
			}
			spec := fields{"localASN": int64(65200), "peer": fields{"address": "10.11.0.1", "asn": int64(65101)}, "export": []any{fields{"prefixes": []any{"10.99.0.0/24"}}}}
			for field, value := range c.change {
				spec[field] = value
				if value == nil {
					delete(spec, field)
				}
			}
			_, err = objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("bgppeers")).Create(w.Ctx, &unstructured.Unstructured{Object: fields{
				"apiVersion": "berth.dev/v1alpha1", "kind": "BGPPeer", "metadata": fields{"generateName": "p-"}, "spec": spec,
			}}, metav1.CreateOptions{})
			checkAnswer(t, err, c.want)
		})
	}
	peer, err := w.Berth.BGPPeers.Create(w.Ctx, &v1alpha1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "typed"}, Spec: v1alpha1.BGPPeerSpec{
			LocalASN: 65200, Peer: v1alpha1.BGPRouter{Address: "10.11.0.1", ASN: 65101}, BFD: &v1alpha1.BGPBFD{}, Export: []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.0/24"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil || peer.Spec.Multihop != 1 || peer.Spec.Peer.Port != 179 || peer.Spec.HoldTime.Duration != 9*time.Second || peer.Spec.GracefulRestart.Time.Duration != 15*time.Second || peer.Spec.BFD.Interval.Duration != 300*time.Millisecond || peer.Spec.BFD.Multiplier != 3 {
		t.Errorf("created %+v, %v", peer, err)
	}
}
