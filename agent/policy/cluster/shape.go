// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/policy"
)

// Labels whose values follow from the name of a StatefulSet's pod.
const (
	labelPodName  = "statefulset.kubernetes.io/pod-name"
	labelPodIndex = "apps.kubernetes.io/pod-index"
)

// Characters of a shape's text, which neither labels nor names of ports may have.
const (
	// end follows each string.
	end = "\x00"
	// ownName and ownIndex stand for a value that follows from the pod's name.
	ownName, ownIndex = "\x01", "\x02"
	// portsFollow is between the labels and the ports.
	portsFollow = "\x03"
)

// shape has the labels and named ports that many pods share. It is a text, because a text is small,
// comparable and its own key.
type shape struct {
	text string
	refs int
}

// shapes holds each shape once, for as long as somebody refers to it. The zero value is empty.
type shapes struct {
	all map[string]*shape
	// The text and the keys of the last shape that was asked for.
	text []byte
	keys []string
}

// write writes the text of a shape. name is the pod's name, empty for a namespace.
func (s *shapes) write(name string, labels map[string]string, ports []policy.NamedPort) {
	s.text, s.keys = s.text[:0], s.keys[:0]
	for key := range labels {
		s.keys = append(s.keys, key)
	}
	slices.Sort(s.keys)
	for _, key := range s.keys {
		value := labels[key]
		switch {
		case key == labelPodName && value == name:
			value = ownName
		case key == labelPodIndex && value == indexOf(name):
			value = ownIndex
		}
		s.text = append(append(append(append(s.text, key...), end...), value...), end...)
	}
	if len(ports) > 0 {
		s.text = append(s.text, portsFollow...)
	}
	for _, p := range ports {
		s.text = append(append(append(append(s.text, p.Name...), end...), p.Protocol...), end...)
		s.text = append(strconv.AppendUint(s.text, uint64(p.Port), 10), end...)
	}
}

func indexOf(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

// swap releases a shape, which may be nil, and returns the shape of the written text.
func (s *shapes) swap(had *shape) *shape {
	if had != nil && had.text == string(s.text) {
		return had
	}
	found := s.all[string(s.text)]
	if found == nil {
		found = &shape{text: string(s.text)}
		if s.all == nil {
			s.all = map[string]*shape{}
		}
		s.all[found.text] = found
	}
	found.refs++
	s.release(had)
	return found
}

func (s *shapes) release(had *shape) {
	if had == nil {
		return
	}
	if had.refs--; had.refs > 0 {
		return
	}
	delete(s.all, had.text)
	if len(s.all) == 0 {
		// An empty map keeps its size.
		*s = shapes{}
	}
}

// isOwn reports whether values of the labels follow from the pod's name.
func (s *shape) isOwn() bool {
	return strings.Contains(s.text, ownName) || strings.Contains(s.text, ownIndex)
}

func (s *shape) read(name string) (labels map[string]string, ports []policy.NamedPort) {
	text, portText, _ := strings.Cut(s.text, portsFollow)
	if text != "" {
		labels = make(map[string]string, strings.Count(text, end)/2)
	}
	for text != "" {
		var key, value string
		key, text, _ = strings.Cut(text, end)
		value, text, _ = strings.Cut(text, end)
		switch value {
		case ownName:
			value = name
		case ownIndex:
			value = indexOf(name)
		}
		labels[key] = value
	}
	for portText != "" {
		var port, protocol, number string
		port, portText, _ = strings.Cut(portText, end)
		protocol, portText, _ = strings.Cut(portText, end)
		number, portText, _ = strings.Cut(portText, end)
		n, _ := strconv.ParseUint(number, 10, 16)
		ports = append(ports, policy.NamedPort{Name: port, Protocol: corev1.Protocol(protocol), Port: uint16(n)})
	}
	return labels, ports
}
