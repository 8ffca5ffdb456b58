// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// The book reads each record that the API server admits: no pod gets an address that has an owner,
// is reserved or rests, and a waiting pod is told who has it.
func TestCombinations(t *testing.T) {
	s := newServer()
	var all []*v1alpha1.FloatingIP
	for ip, refused := range ipamtest.FloatingIPs(time.Now()) {
		if refused == nil {
			s.Put(ip)
			all = append(all, ip)
		}
	}
	pool := testPool("web", "10.0.0.0/8")
	pool.Spec.Subnet, pool.Spec.Gateway = "10.0.0.0/8", "10.255.0.1"
	i := open(t, s, pool)
	n := i.book.Counts("web")
	if got := n.Allocated + n.Retained + n.Reserved + n.Cooling; got != uint64(len(all)) {
		t.Errorf("the book has %d addresses (%+v), there are %d", got, n, len(all))
	}
	candidates, err := i.Candidates(request("ads-0", "x", v1alpha1.ReleaseRetain))
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range all {
		addr, _ := v1alpha1.AddrOf(ip.Name)
		record, known := i.book.Stored(addr)
		if !known || i.IsFree(addr) {
			t.Fatalf("%+v is given to anybody", ip.Spec)
		}
		if record.Cooling && ip.Spec.Owner != nil {
			t.Errorf("%+v rests for ever", ip.Spec)
		}
		if candidates.whoHas(addr) == "" {
			t.Errorf("nothing says who has %+v", ip.Spec)
		}
	}
}
