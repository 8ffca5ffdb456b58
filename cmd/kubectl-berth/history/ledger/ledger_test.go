// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
)

func text(all []Tenure) string {
	var lines []string
	for i := range all {
		t := &all[i]
		at := func(at *time.Time) string {
			if at == nil {
				return "-"
			}
			return at.UTC().Format("15:04")
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s/%s %s %s %s: %s", at(t.From), at(t.Until), t.State, t.Namespace, t.Pod, t.PodUID, t.Node, t.Owner, t.Why))
	}
	return strings.Join(lines, "\n")
}

var now = time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)

// All that can be said about an address, as text of klog, as JSON, with kubelet's time before it,
// and as audit events.
func TestTenures(t *testing.T) {
	const (
		bound = `"A pod got a floating IP" address="10.0.0.5" pool="web" namespace="shop" pod="%s" podUID="%s" node="n1" ownerKind="StatefulSet" owner="web" why=""`
		ended = `"A pod gave up a floating IP, which its owner keeps" address="10.0.0.5" pool="web" namespace="shop" pod="%s" podUID="%s" node="n1" ownerKind="StatefulSet" owner="web" why="the \"pod\" is gone"`
		freed = `"A floating IP was freed" address="10.0.0.5" pool="web" namespace="shop" pod="web-0" podUID="" node="" ownerKind="StatefulSet" owner="web" why="StatefulSet web is gone"`
	)
	klogged := func(at, what string, with ...any) string {
		return "I1231 " + at + ":00.000000       1 tenure.go:47] " + fmt.Sprintf(what, with...)
	}
	audit := func(at, verb, user, uri, spec string) string {
		object := ""
		if spec != "" {
			object = `,"responseObject":{"metadata":{"name":"10.0.0.5"},"spec":` + spec + `}`
		}
		return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","stage":"ResponseComplete","requestURI":"/apis/berth.dev/v1alpha1/floatingips` + uri + `","verb":"` + verb +
			`","user":{"username":"` + user + `"},"objectRef":{"resource":"floatingips","name":"10.0.0.5","apiGroup":"berth.dev"},"responseStatus":{"code":200}` + object + `,"stageTimestamp":"2025-12-31T` + at + `:00.000000Z"}`
	}
	for _, test := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"a life", []string{
			klogged("10:00", bound, "web-0", "u1"), klogged("11:00", ended, "web-0", "u1"), klogged("12:00", bound, "web-0", "u2"), klogged("13:00", ended, "web-0", "u2"), klogged("14:00", freed),
		}, `10:00 11:00 Held shop/web-0 u1 n1 web: the "pod" is gone
11:00 12:00 Retained shop/   web: pod web-0 got it
12:00 13:00 Held shop/web-0 u2 n1 web: the "pod" is gone
13:00 14:00 Retained shop/   web: StatefulSet web is gone`},
		{"it lasts, and began before", []string{klogged("11:00", ended, "web-0", "u1"), klogged("12:00", bound, "web-0", "u2")}, `- 11:00 Held shop/web-0 u1 n1 web: the "pod" is gone
11:00 12:00 Retained shop/   web: pod web-0 got it
12:00 - Held shop/web-0 u2 n1 web: `},
		{"the next pod is sooner than the end of the former", []string{klogged("10:00", bound, "web-a", "u1"), klogged("11:00", bound, "web-b", "u2"), klogged("12:00", ended, "web-a", "u1")}, `10:00 11:00 Held shop/web-a u1 n1 web: its owner's pod web-b took it
11:00 - Held shop/web-b u2 n1 web: `},
		{"a virtual machine moves", []string{klogged("10:00", bound, "vm-a", "u1"), strings.Replace(klogged("11:00", bound, "vm-b", "u2"), `why=""`, `why="live migration from node n1 to node n2"`, 1)}, `10:00 11:00 Held shop/vm-a u1 n1 web: its owner's pod vm-b took it: live migration from node n1 to node n2
11:00 - Held shop/vm-b u2 n1 web: `},
		{"others", []string{strings.ReplaceAll(klogged("10:00", bound, "web-0", "u1"), "10.0.0.5", "10.0.0.50"), klogged("10:00", `"Something else" address="10.0.0.5"`), "10.0.0.5", `{"10.0.0.5"`}, ""},
		{"with the time of kubelet", []string{"2025-12-31T09:30:00.123456789Z " + klogged("10:00", bound, "web-0", "u1")}, `09:30 - Held shop/web-0 u1 n1 web: `},
		{"audited", []string{
			audit("08:00", "create", "ann", "?dryRun=All", `{"reserved":true}`),
			audit("09:00", "create", "ann", "", `{"reserved":true}`), audit("10:00", "delete", "ann", "/10.0.0.5", ""),
			audit("11:00", "patch", "scheduler", "/10.0.0.5", `{"pod":{"name":"web-0","uid":"u1"},"node":"n1","owner":{"kind":"StatefulSet","namespace":"shop","name":"web"}}`),
			klogged("11:01", bound, "web-0", "u1"), klogged("11:30", ended, "web-0", "u1"),
			audit("11:31", "patch", "controller", "/10.0.0.5", `{"owner":{"kind":"StatefulSet","namespace":"shop","name":"web"}}`),
		}, `09:00 10:00 Reserved /   : delete by ann
11:00 11:30 Held shop/web-0 u1 n1 web: the "pod" is gone
11:30 - Retained shop/   web: `},
		{"of a node itself", []string{
			audit("09:00", "create", "controller", "", `{"node":"n1","owner":{"apiVersion":"v1","kind":"Node","name":"n1"}}`),
			audit("10:00", "patch", "controller", "/10.0.0.5", `{"owner":{"apiVersion":"v1","kind":"Node","name":"n1"}}`),
		}, `09:00 10:00 Held /  n1 n1: patch by controller
10:00 - Retained /   n1: `},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := New(netip.MustParseAddr("10.0.0.5"), now)
			if err := l.Read(strings.NewReader(strings.Join(test.lines, "\n"))); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, text(l.Tenures())); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// What the programs write is read, in both formats of their logs, and all lines have the same keys.
func TestWritten(t *testing.T) {
	pod := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
		Address: "2001:db8::5", Pool: "six", Node: "n1", Pod: &v1alpha1.PodReference{Name: "web-0", UID: "u1"}, Since: &metav1.Time{Time: now},
		Owner: &v1alpha1.Owner{Kind: "StatefulSet", Namespace: "shop", Name: "web"},
	}}
	for _, format := range []string{logsapi.DefaultLogFormat, logsapi.JSONLogFormat} {
		var out bytes.Buffer
		config := logsapi.NewLoggingConfiguration()
		config.Format = format
		if err := logsapi.ResetForTest(nil); err != nil {
			t.Fatal(err)
		}
		klog.LogToStderr(false)
		klog.SetOutput(&out)
		if err := logsapi.ValidateAndApplyWithOptions(config, &logsapi.LoggingOptions{ErrorStream: &out, InfoStream: &out}, nil); err != nil {
			t.Fatal(err)
		}
		tenure.Log(tenure.Bound, pod, "")
		tenure.Log(tenure.Freed, pod, "the pod is gone")
		klog.Flush()
		l := New(netip.MustParseAddr("2001:db8::5"), time.Now())
		if err := l.Read(bytes.NewReader(out.Bytes())); err != nil {
			t.Fatal(err)
		}
		all := l.Tenures()
		if len(all) != 1 || all[0].Pod != "web-0" || all[0].PodUID != "u1" || all[0].Node != "n1" || all[0].Namespace != "shop" || all[0].Owner != "web" || all[0].OwnerKind != "StatefulSet" ||
			all[0].Pool != "six" || all[0].Why != "the pod is gone" || all[0].From == nil || all[0].Until == nil || time.Since(*all[0].From).Abs() > time.Minute {
			t.Errorf("%s: read %+v from\n%s", format, all, &out)
		}
	}
}
