// SPDX-License-Identifier: Apache-2.0

package register

// Scope is the part of the cluster that somebody may see: all, or the rows of some namespaces.
type Scope struct {
	all        bool
	namespaces map[string]bool
}

// Everything is the scope of somebody who may list FloatingIPs.
var Everything = Scope{all: true}

// Of returns the scope of somebody who may list the pods of some namespaces.
func Of(namespaces ...string) Scope {
	s := Scope{namespaces: map[string]bool{}}
	for _, namespace := range namespaces {
		s.namespaces[namespace] = true
	}
	return s
}

func (s Scope) All() bool { return s.all }

func (s Scope) Empty() bool { return !s.all && len(s.namespaces) == 0 }

// Sees says whether the rows of a namespace are seen. Rows of no namespace, such as reserved
// addresses, are only for somebody who sees everything.
func (s Scope) Sees(namespace string) bool {
	return s.all || namespace != "" && s.namespaces[namespace]
}
