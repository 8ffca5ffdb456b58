// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// missing waits until the console says of exactly these kinds that it cannot read them, each in a
// text with these words.
func (c *console) missing(words string, kinds ...string) {
	c.w.T.Helper()
	c.until(fmt.Sprintf("wait until %v are missing", kinds), func() error {
		all := read[summary](c, "/summary").Missing
		for _, kind := range kinds {
			if !strings.Contains(all[kind], words) {
				return fmt.Errorf("want %q of %s in %q", words, kind, all)
			}
		}
		return complainIf(len(all) != len(kinds), "want these alone: %q", all)
	})
}

var allKinds = []string{"BGPPeers", "FloatingIPs", "IPClaims", "IPPools", "NodeAssignments", "nodes", "pods"}

// A user sees the objects that the user may list and watch, and is told which others are missing;
// what the user may, may change.
func TestRights(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(1)
	w.Pool("web", "10.0.70.10-10.0.70.19")
	hold(w, "10.0.70.10", "web", "web-0")
	nobody := startAs(w, "nobody")
	nobody.missing("you may not list and watch", allKinds...)
	if got := read[page](nobody, "/addresses"); len(got.Addresses) > 0 {
		t.Errorf("nobody sees %+v", got)
	}
	// A user who may read pods and nodes.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "podder"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"list", "watch"}}}}
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bind(role.Name, "podder")
	podder := startAs(w, "podder")
	podder.missing("s of the whole cluster", "BGPPeers", "FloatingIPs", "IPClaims", "IPPools", "NodeAssignments")
	if nodes := podder.get(prefix + "/nodes").body; !strings.Contains(string(nodes), `"node1"`) {
		t.Errorf("podder sees the nodes %s", nodes)
	}
	// An administrator gives the rights meanwhile.
	w.Grant("viewer-rbac.yaml", "podder")
	podder.missing("")
	podder.until("wait for the address", func() error { return podder.holder("10.0.70.10", "web-0") })
}

// The API server is away for a while, comes back with other objects, and then does not know the
// user any more: the console answers from memory, and says so.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(1)
	w.Pool("web", "10.0.70.10-10.0.70.19")
	hold(w, "10.0.70.10", "web", "web-0")
	account := asAccount(w, "ann")
	backup := filepath.Join(t.TempDir(), "backup")
	if err := w.ControlPlane.Backup(w.Ctx, backup); err != nil {
		t.Fatal(err)
	}
	hold(w, "10.0.70.11", "web", "web-1")
	c := startWith(w, account, proxy.Options{}, nil)
	c.until("wait for the addresses", func() error { return c.holder("10.0.70.11", "web-1") })
	c.missing("")

	const unasked = "are not of now, as the API server cannot be asked"
	c.Set(proxy.Faults{Error: 1})
	c.CutWatches()
	c.missing(unasked, allKinds...)
	if err := c.holder("10.0.70.11", "web-1"); err != nil {
		t.Errorf("without the API server: %v", err)
	}
	hold(w, "10.0.70.12", "web", "web-2")
	c.Set(proxy.Faults{})
	c.until("wait for the address that came meanwhile", func() error { return c.holder("10.0.70.12", "web-2") })
	c.missing("")

	// It comes back with the objects of before.
	w.Restore(backup)
	c.until("wait for the objects of the backup", func() error {
		got := read[page](c, "/addresses").Addresses
		return complainIf(len(got) != 1 || got[0].Address != "10.0.70.10", "there are %+v", got)
	})
	c.missing("")
	hold(w, "10.0.70.13", "web", "web-3")
	c.until("wait for an address after the restart", func() error { return c.holder("10.0.70.13", "web-3") })

	// The user's credentials end. The API server remembers for some seconds that they were good.
	if err := w.Kube.CoreV1().ServiceAccounts(simulation.Namespace).Delete(w.Ctx, "ann", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait until the credentials have ended", func() error {
		c.CutWatches()
		all := read[summary](c, "/summary").Missing
		told := slices.ContainsFunc(allKinds, func(kind string) bool { return strings.Contains(all[kind], "log in again") })
		return complainIf(!told, "%q", all)
	})
	c.missing("log in again, and start kubectl berth console anew", allKinds...)
	if err := c.holder("10.0.70.13", "web-3"); err != nil {
		t.Errorf("with credentials that ended: %v", err)
	}
}

// asAccount makes a ServiceAccount with the rights of a viewer, and returns the configuration of a
// client with a token of it.
func asAccount(w *simulation.World, name string) *rest.Config {
	w.T.Helper()
	accounts := w.Kube.CoreV1().ServiceAccounts(simulation.Namespace)
	if _, err := accounts.Create(w.Ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	w.Grant("viewer-rbac.yaml", proxy.ServiceAccount(simulation.Namespace, name).UserName)
	seconds := int64(time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	request, err := accounts.CreateToken(w.Ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	config := rest.AnonymousClientConfig(w.Config)
	config.BearerToken = request.Status.Token
	return config
}
