// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Who may make tokens of berth-diagnosis and berth-failover-operator makes short ones, for one
// program on one node.
func TestTokensOfOperators(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 2)
	for _, role := range []string{agentpod.Diagnosis, agentpod.Operator} {
		if _, err := w.Kube.RbacV1().RoleBindings(w.System).Create(w.Ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "ann-" + role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user string, groups ...string) *kubernetes.Clientset {
		config := rest.CopyConfig(w.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		return kubernetes.NewForConfigOrDie(config)
	}
	ann := as("ann", "system:authenticated")
	create := func(kube kubernetes.Interface, account string, spec authenticationv1.TokenRequestSpec) error {
		_, err := kube.CoreV1().ServiceAccounts(w.System).CreateToken(w.Ctx, account, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
		return err
	}
	token := func(seconds int64, node string, audiences ...string) authenticationv1.TokenRequestSpec {
		spec := authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds}
		if node != "" {
			spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node}
		}
		return spec
	}
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		if create(ann, agentpod.Diagnosis, token(601, "node1", "agent.berth.dev/node1")) == nil {
			return errors.New("a token for longer is made")
		}
		return nil
	})
	const diagnosis, operator = agentpod.Diagnosis, agentpod.Operator
	for _, test := range []struct {
		name, account string
		spec          authenticationv1.TokenRequestSpec
		valid         bool
	}{
		{"for an agent", diagnosis, token(600, "node1", "agent.berth.dev/node1"), true},
		{"for a speaker", diagnosis, token(600, "node1", "speaker.berth.dev/node1"), true},
		{"for berth-failover", diagnosis, token(600, "node1", "failover.berth.dev"), true},
		{"a word for an agent", operator, token(600, "node2", "agent.berth.dev/node2"), true},
		{"a word for berth-failover", operator, token(600, "node2", "failover.berth.dev"), true},
		{"for a day", diagnosis, token(86400, "node1", "agent.berth.dev/node1"), false},
		{"as long as by default", diagnosis, authenticationv1.TokenRequestSpec{Audiences: []string{"agent.berth.dev/node1"}}, false},
		{"a word for a day", operator, token(86400, "node1", "agent.berth.dev/node1"), false},
		{"for the API server", diagnosis, token(600, "node1"), false},
		{"a word for the API server", operator, token(600, "node1"), false},
		{"for two agents", diagnosis, token(600, "node1", "agent.berth.dev/node1", "agent.berth.dev/node2"), false},
		{"for an agent and the API server", operator, token(600, "node1", "agent.berth.dev/node1", "https://kubernetes.default.svc"), false},
		{"for another program", diagnosis, token(600, "node1", "vault"), false},
		{"a word for a speaker", operator, token(600, "node1", "speaker.berth.dev/node1"), false},
		{"for whatever agent", diagnosis, token(600, "node1", "agent.berth.dev/"), false},
		{"of another node's life", diagnosis, token(600, "node2", "agent.berth.dev/node1"), false},
		{"unbound", diagnosis, token(600, "", "agent.berth.dev/node1"), false},
		{"unbound word", operator, token(600, "", "failover.berth.dev"), false},
	} {
		err := create(ann, test.account, test.spec)
		if test.valid && err != nil || !test.valid && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubectl berth")) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// Who may make any token is not limited, and so are ServiceAccounts of this name that agents know
	// nothing of.
	if err := create(w.Kube, diagnosis, token(3600, "", "vault")); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	// So does what asks agents.
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-x"}, Spec: v1.PodSpec{NodeName: "node1"}}
	if _, err := (&agentport.Ports{Kube: ann, Namespace: w.System}).Agent(agent).Inspect(w.Ctx, "", false); !apierrors.IsNotFound(err) {
		t.Errorf("the agent that is not there is asked: %v", err)
	}
}
