// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// fed returns a feed of a book with a pool, and how it says that addresses came free.
func fed(t *testing.T) (f *feed, freed func() []string) {
	t.Helper()
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	s.Late()
	var addrs []string
	i.OnChange(func(change Change) {
		if change.Pool != "" && change.Addr.IsValid() {
			addrs = append(addrs, change.Addr.String())
		}
	})
	return newFeed(i, s.Client().FloatingIPs), func() []string {
		told := addrs
		addrs = nil
		return told
	}
}

func listedIP(name, uid, version string) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: version},
		Spec: v1alpha1.FloatingIPSpec{
			Address: name, Pool: "web", Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "of-" + name},
			Pod: &v1alpha1.PodReference{Name: "of-" + name, UID: "pod"},
		},
	}
}

// stored returns the UIDs of the objects of 10.0.70.2 to 10.0.70.5 in the book.
func stored(f *feed) (uids []string) {
	for _, name := range []string{"10.0.70.2", "10.0.70.3", "10.0.70.4", "10.0.70.5"} {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			panic(err)
		}
		record, _ := f.ipam.book.Stored(addr)
		uids = append(uids, record.UID)
	}
	return uids
}

func replace(t *testing.T, f *feed, version string, ips ...*v1alpha1.FloatingIP) {
	t.Helper()
	var objects []any
	for _, ip := range ips {
		objects = append(objects, ip)
	}
	if err := f.Replace(objects, version); err != nil {
		t.Fatal(err)
	}
}

// After an outage the watch lists again. The book then has the objects of the list, and those
// that this process wrote since the list was made.
func TestFeedListsAgain(t *testing.T) {
	f, freed := fed(t)
	select {
	case <-f.Done():
		t.Fatal("the feed has listed before its first list")
	default:
	}
	replace(t, f, "10", listedIP("10.0.70.2", "a", "1"), listedIP("10.0.70.3", "b", "2"), listedIP("10.0.70.4", "c", "3"))
	<-f.Done()
	if got, want := stored(f), []string{"a", "b", "c", ""}; !slices.Equal(got, want) {
		t.Fatalf("the book has %q, want %q", got, want)
	}

	written, err := recordOf(listedIP("10.0.70.5", "d", "21"))
	if err != nil {
		t.Fatal(err)
	}
	f.ipam.book.Confirm(written, "pod")
	freed()
	replace(t, f, "20", listedIP("10.0.70.2", "a", "11"), listedIP("10.0.70.4", "another", "12"))
	if got, want := stored(f), []string{"a", "", "another", "d"}; !slices.Equal(got, want) {
		t.Errorf("the book has %q, want %q", got, want)
	}
	if got := freed(); !slices.Contains(got, "10.0.70.3") {
		t.Errorf("came free: %q, want 10.0.70.3 among them", got)
	}
	replace(t, f, "30", listedIP("10.0.70.2", "a", "11"))
	if got, want := stored(f), []string{"a", "", "", ""}; !slices.Equal(got, want) {
		t.Errorf("the book has %q, want %q", got, want)
	}
}

// Where a backup of etcd was restored, objects have the versions that they had in the backup, and
// the list has a later version than all that was written since.
func TestFeedAfterRestore(t *testing.T) {
	f, freed := fed(t)
	replace(t, f, "10", listedIP("10.0.70.2", "a", "1"), listedIP("10.0.70.3", "b", "2"))
	for _, ip := range []*v1alpha1.FloatingIP{retainedIP("10.0.70.2", "a", "11"), listedIP("10.0.70.4", "c", "12")} {
		if err := f.Update(ip); err != nil {
			t.Fatal(err)
		}
	}
	written, err := recordOf(retainedIP("10.0.70.3", "b", "1021"))
	if err != nil {
		t.Fatal(err)
	}
	f.ipam.book.Confirm(written, "pod")
	freed()
	replace(t, f, "1000", listedIP("10.0.70.2", "a", "1"), listedIP("10.0.70.3", "b", "2"))
	if got, want := stored(f), []string{"a", "b", "", ""}; !slices.Equal(got, want) {
		t.Errorf("the book has %q, want %q", got, want)
	}
	if got := freed(); !slices.Contains(got, "10.0.70.4") {
		t.Errorf("came free: %q, want 10.0.70.4 among them", got)
	}
	for addr, want := range map[string]string{"10.0.70.2": "pod", "10.0.70.3": ""} {
		if record, _ := f.ipam.book.Stored(netip.MustParseAddr(addr)); record.PodUID != want {
			t.Errorf("%s: the book has pod %q of version %d, want %q: the list is the truth but for what this process wrote after it", addr, record.PodUID, record.Version, want)
		}
	}
}

// retainedIP is a listedIP without a pod.
func retainedIP(name, uid, version string) *v1alpha1.FloatingIP {
	ip := listedIP(name, uid, version)
	ip.Spec.Pod, ip.Spec.ReleasePolicy = nil, v1alpha1.ReleaseRetain
	return ip
}

func TestFeedWatches(t *testing.T) {
	f, freed := fed(t)
	replace(t, f, "10")
	for _, step := range []struct {
		apply func(any) error
		ip    *v1alpha1.FloatingIP
		want  []string
		freed []string
	}{
		{f.Add, listedIP("10.0.70.2", "a", "11"), []string{"a", "", "", ""}, nil},
		{f.Update, listedIP("10.0.70.2", "a", "12"), []string{"a", "", "", ""}, nil},
		{f.Add, listedIP("10.0.70.2", "b", "14"), []string{"b", "", "", ""}, []string{"10.0.70.2"}},
		{f.Delete, listedIP("10.0.70.2", "a", "13"), []string{"b", "", "", ""}, nil},
		{f.Delete, listedIP("10.0.70.2", "b", "15"), []string{"", "", "", ""}, []string{"10.0.70.2"}},
	} {
		if err := step.apply(step.ip); err != nil {
			t.Fatal(err)
		}
		if got := stored(f); !slices.Equal(got, step.want) {
			t.Errorf("after %s of version %s the book has %q, want %q", step.ip.UID, step.ip.ResourceVersion, got, step.want)
		}
		if got := freed(); !slices.Equal(got, step.freed) {
			t.Errorf("after %s of version %s came free: %q, want %q", step.ip.UID, step.ip.ResourceVersion, got, step.freed)
		}
	}
}

// A list whose version cannot be compared with the book's is asked for again.
func TestFeedRefusesAListWithoutVersion(t *testing.T) {
	f, _ := fed(t)
	replace(t, f, "10", listedIP("10.0.70.2", "a", "1"))
	if err := f.Replace(nil, "unknown"); err == nil {
		t.Error("a list of version \"unknown\" was taken")
	}
	if got := stored(f); got[0] != "a" {
		t.Errorf("the book has %q, want a first", got)
	}
}
