// SPDX-License-Identifier: Apache-2.0

// Package ledger reads who had an address from log lines: those that package tenure writes, as
// klog's text or as JSON, and the API server's audit events of FloatingIPs. It does no I/O but
// reading.
package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
)

// Tenure is a time in which somebody had an address.
type Tenure struct {
	// State is Held, Retained or Reserved, as "kubectl berth who" says.
	State standing.State `json:"state"`
	// From is nil if it began before the lines do, and Until if it lasts at their end.
	From      *time.Time `json:"from,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	PodUID    string     `json:"podUID,omitempty"`
	Node      string     `json:"node,omitempty"`
	OwnerKind string     `json:"ownerKind,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	Why       string     `json:"why,omitempty"`
}

func (t *Tenure) Holds(at time.Time) bool {
	return (t.From == nil || !t.From.After(at)) && (t.Until == nil || t.Until.After(at))
}

type Ledger struct {
	reader  reader
	changes []*change
	// Begins is when the first line with a time was written, of all sources; zero: there was none.
	Begins time.Time
}

func New(addr netip.Addr, now time.Time) *Ledger {
	return &Ledger{reader: reader{addr: addr, name: v1alpha1.NameOf(addr), now: now.UTC()}}
}

// longest is the longest line: an audit event has a whole object.
const longest = 8 << 20

// Read adds the lines of a log or of several after each other.
func (l *Ledger) Read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), longest)
	begun := false
	for lines.Scan() {
		concerns := l.reader.concerns(lines.Bytes())
		if begun && !concerns {
			continue
		}
		c, at := l.reader.read(lines.Bytes(), concerns)
		if !begun && !at.IsZero() {
			begun = true
			if l.Begins.IsZero() || at.Before(l.Begins) {
				l.Begins = at
			}
		}
		if c != nil && !c.at.IsZero() {
			l.changes = append(l.changes, c)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	return nil
}

// Tenures returns who had the address, in the order of time.
func (l *Ledger) Tenures() []Tenure {
	slices.SortStableFunc(l.changes, func(a, b *change) int { return a.at.Compare(b.at) })
	var all []Tenure
	open := false // whether the last one lasts
	for _, c := range l.changes {
		last := &Tenure{}
		if open {
			last = &all[len(all)-1]
		}
		switch {
		case repeats(last, c), open && isOfEarlier(last, c):
			continue
		case open:
			last.Until, last.Why = &c.at, whyEnded(last, c)
		case c.state != standing.Held && c.PodUID != "":
			// It began before the lines do.
			before := c.Tenure
			before.State, before.Until, before.Why = standing.Held, &c.at, c.why
			all = append(all, before)
		}
		if open = c.state != ""; open {
			next := c.Tenure
			next.State, next.From = c.state, &c.at
			if c.state != standing.Held {
				next.Pod, next.PodUID, next.Node = "", "", ""
			}
			all = append(all, next)
		}
	}
	return all
}

func repeats(last *Tenure, c *change) bool {
	if last.State != c.state || c.state == "" {
		return false
	}
	return c.state != standing.Held || last.PodUID == c.PodUID
}

// isOfEarlier says whether a line ends a pod that has lost the address to the present one.
func isOfEarlier(last *Tenure, c *change) bool {
	return last.State == standing.Held && c.state != standing.Held && c.PodUID != "" && c.PodUID != last.PodUID
}

func whyEnded(last *Tenure, c *change) string {
	switch {
	case c.state == standing.Held && last.State == standing.Held:
		took := "its owner's pod " + c.Pod + " took it"
		if c.why != "" {
			took += ": " + c.why
		}
		return took
	case c.state == standing.Held:
		return "pod " + c.Pod + " got it"
	}
	return c.why
}

type change struct {
	at    time.Time
	state standing.State // after the change; empty: nobody has it
	Tenure
	why string
}

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

// read returns the change of a line, nil if it is of something else, and when it was written.
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

// klogTime reads a time of klog, the last such one as it has no year, in UTC as containers write.
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
		c.state = standing.Held
	case tenure.Kept:
		c.state = standing.Retained
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
	c.Tenure = of(&ip)
	if c.state = standing.Of(&ip); ip.Spec.IsHeld() {
		c.state = standing.Held
	} else if c.state == standing.Cooling {
		c.state = ""
	}
	return c
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
