// SPDX-License-Identifier: Apache-2.0

// Package ledger reads who had an address from log lines: those that package tenure writes, as klog's text or as
// JSON, and the API server's audit events of FloatingIPs. It does no I/O but reading.
package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
)

// change is a line about an address.
type change struct {
	at    time.Time
	state State // after the change; empty: nobody has it
	Tenure
	why string
}

// reader reads the lines about one address.
type reader struct {
	addr netip.Addr
	// name is how objects write the address.
	name string
	// now tells the year of klog's lines, which have none.
	now time.Time
}

// concerns says whether a line may be about the address, cheaply.
func (r *reader) concerns(line []byte) bool {
	return bytes.Contains(line, []byte(r.addr.String())) || bytes.Contains(line, []byte(r.name))
}

// read returns the change of a line, nil if it is about something else. at is when the line was written, zero where
// it does not say.
func (r *reader) read(line []byte, parse bool) (c *change, at time.Time) {
	line, at = stamped(line)
	if bytes.HasPrefix(line, []byte("{")) {
		return r.json(line, at, parse)
	}
	match := klogLine.FindSubmatch(line)
	if match == nil {
		return nil, at
	}
	if at.IsZero() {
		at = r.klogTime(string(match[1]))
	}
	message, err := strconv.Unquote(string(match[2]))
	if err != nil || !parse {
		return nil, at
	}
	values := map[string]string{}
	for _, pair := range klogPair.FindAllSubmatch(match[3], -1) {
		if text, err := strconv.Unquote(string(pair[2])); err == nil {
			values[string(pair[1])] = text
		}
	}
	return r.ofLog(message, at, values), at
}

var (
	klogLine = regexp.MustCompile(`^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) +\d+ [^\]]+\] ("(?:[^"\\]|\\.)*")(.*)$`)
	klogPair = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*")`)
)

// stamped takes off the time that kubelet writes before a line (kubectl logs --timestamps).
func stamped(line []byte) ([]byte, time.Time) {
	first, rest, found := bytes.Cut(line, []byte(" "))
	if !found || len(first) < len("2006-01-02T15:04:05Z") {
		return line, time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, string(first))
	if err != nil {
		return line, time.Time{}
	}
	return rest, at
}

// klogTime reads the time of a line of klog, which has no year: the last such time. Programs in containers write UTC.
func (r *reader) klogTime(text string) time.Time {
	at, err := time.Parse("20060102 15:04:05.000000", strconv.Itoa(r.now.Year())+text)
	if err != nil {
		return time.Time{}
	}
	if at.After(r.now.Add(24 * time.Hour)) {
		at = at.AddDate(-1, 0, 0)
	}
	return at
}

// json reads a line of JSON: a log line or an audit event.
func (r *reader) json(line []byte, at time.Time, parse bool) (*change, time.Time) {
	var head struct {
		Timestamp      *float64  `json:"ts"` // milliseconds
		Message        string    `json:"msg"`
		APIVersion     string    `json:"apiVersion"`
		StageTimestamp time.Time `json:"stageTimestamp"`
	}
	if json.Unmarshal(line, &head) != nil {
		return nil, at
	}
	if strings.HasPrefix(head.APIVersion, auditv1.GroupName+"/") {
		if !parse {
			return nil, head.StageTimestamp
		}
		return r.audited(line), head.StageTimestamp
	}
	if at.IsZero() && head.Timestamp != nil {
		at = time.UnixMicro(int64(math.Round(*head.Timestamp * 1000)))
	}
	if !parse {
		return nil, at
	}
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return nil, at
	}
	values := map[string]string{}
	for name, value := range fields {
		if text, ok := value.(string); ok {
			values[name] = text
		}
	}
	return r.ofLog(head.Message, at, values), at
}

// ofLog returns the change of a line of package tenure.
func (r *reader) ofLog(message string, at time.Time, values map[string]string) *change {
	addr, err := netip.ParseAddr(values[tenure.KeyAddress])
	if err != nil || addr != r.addr {
		return nil
	}
	c := &change{at: at, why: values[tenure.KeyWhy], Tenure: Tenure{
		Pool: values[tenure.KeyPool], Namespace: values[tenure.KeyNamespace], Pod: values[tenure.KeyPod], PodUID: values[tenure.KeyPodUID],
		Node: values[tenure.KeyNode], OwnerKind: values[tenure.KeyOwnerKind], Owner: values[tenure.KeyOwner],
	}}
	switch tenure.Change(message) {
	case tenure.Bound:
		c.state = Held
	case tenure.Kept:
		c.state = Retained
	case tenure.Freed:
	default:
		return nil
	}
	return c
}

// audited returns the change of an audit event: a write of the FloatingIP that was done.
func (r *reader) audited(line []byte) *change {
	var event auditv1.Event
	if json.Unmarshal(line, &event) != nil || event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil || event.ResponseStatus == nil {
		return nil
	}
	ref := event.ObjectRef
	if ref.APIGroup != v1alpha1.GroupName || ref.Resource != "floatingips" || ref.Subresource != "" ||
		event.ResponseStatus.Code >= 300 || strings.Contains(event.RequestURI, "dryRun=") {
		return nil
	}
	c := &change{at: event.StageTimestamp.Time, why: event.Verb + " by " + event.User.Username}
	if event.ImpersonatedUser != nil {
		c.why += " as " + event.ImpersonatedUser.Username
	}
	if event.Verb == "delete" {
		if ref.Name != r.name {
			return nil
		}
		return c
	}
	var ip v1alpha1.FloatingIP
	if event.ResponseObject == nil || json.Unmarshal(event.ResponseObject.Raw, &ip) != nil || cmp.Or(ref.Name, ip.Name) != r.name {
		return nil
	}
	c.state, c.Tenure = stateOf(&ip), of(&ip)
	return c
}

func stateOf(ip *v1alpha1.FloatingIP) State {
	switch spec := &ip.Spec; {
	case spec.IsHeld():
		return Held
	case spec.Reserved:
		return Reserved
	case spec.Owner != nil:
		return Retained
	}
	return ""
}

func of(ip *v1alpha1.FloatingIP) Tenure {
	spec := &ip.Spec
	t := Tenure{Pool: spec.Pool, Pod: spec.LastPod, Node: spec.Node}
	if spec.Owner != nil {
		t.Namespace, t.OwnerKind, t.Owner = spec.Owner.Namespace, spec.Owner.Kind, spec.Owner.Name
	}
	if spec.Pod != nil {
		t.Pod, t.PodUID = spec.Pod.Name, string(spec.Pod.UID)
	}
	return t
}

// String is for messages of tests.
func (c *change) String() string { return fmt.Sprintf("%s %s %+v %s", c.at, c.state, c.Tenure, c.why) }
