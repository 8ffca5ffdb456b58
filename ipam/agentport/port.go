// SPDX-License-Identifier: Apache-2.0

// Package agentport sends requests to agents through the API server's proxy to their pods, with a
// token that is valid for one agent only: see package agentpod. Other programs of Berth are asked
// in the same way.
package agentport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// Ports asks agents. Safe for concurrent use.
type Ports struct {
	Kube kubernetes.Interface
	// Namespace is the namespace of Berth.
	Namespace string
}

const (
	// patience limits one question: agents answer within half a minute.
	patience = 40 * time.Second
	// tokenSeconds is how long a token is valid: as short as the API server allows.
	tokenSeconds = 600
)

// Agent returns a client of the agent in a pod. Only that agent accepts the token, because the
// token's audience names the node. The agent asks the API server to review the token. For this it
// uses its own token, which becomes invalid with its pod.
func (p *Ports) Agent(pod *v1.Pod) inquiry.Client {
	return func(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
		q := Question{
			Method: method, Path: path, Query: query, Pod: pod, Of: "the agent of node " + pod.Spec.NodeName,
			Account: agentpod.Diagnosis, Audience: agentpod.Audience(pod.Spec.NodeName),
		}
		if method != http.MethodGet {
			// A request that changes something needs more rights.
			q.Account = agentpod.Operator
		}
		return p.Ask(ctx, q)
	}
}

// Carried asks the ready agent of a node for the addresses that the node carries, or is about to
// carry or to stop carrying. It blocks.
func (p *Ports) Carried(ctx context.Context, node string) ([]netip.Addr, error) {
	agents, err := p.Kube.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: agentpod.Selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		ResourceVersion: "0", // from the API server's memory
	})
	if err != nil {
		return nil, fmt.Errorf("find the agent of node %s: %w", node, err)
	}
	i := slices.IndexFunc(agents.Items, func(pod v1.Pod) bool { return agentpod.IsReady(&pod) })
	if i < 0 {
		return nil, fmt.Errorf("node %s has no ready agent", node)
	}
	carried, err := p.Agent(&agents.Items[i]).Carried(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("ask what node %s carries: %w", node, err)
	}
	addrs := make([]netip.Addr, 0, len(carried.Addresses))
	for _, c := range carried.Addresses {
		addrs = append(addrs, c.Address)
	}
	return addrs, nil
}

// Witness asks the agent in a pod to check whether another node answers. It blocks for about a
// second.
func (p *Ports) Witness(ctx context.Context, agent *v1.Pod, q inquiry.WitnessQuestion) (*inquiry.Testimony, error) {
	return p.Agent(agent).Witness(ctx, q)
}

// Question is a request to a program of Berth.
type Question struct {
	// Method is GET or POST. Path and Query name the resource.
	Method, Path string
	Query        url.Values
	// Body is the contents of a POST, as JSON; nil: none.
	Body []byte
	// Pod is the program's pod. The token becomes invalid when the pod's Node is deleted. Of names the
	// program in errors.
	Pod *v1.Pod
	Of  string
	// Account is the ServiceAccount in Berth's namespace whose token the program gets. A Role of the
	// same name lets users request the token. Audience names the program that the token is for.
	Account, Audience string
}

// Ask sends a question to a program. If the program itself returns an error, the error has only the
// program's text. Ask blocks, for patience at most.
func (p *Ports) Ask(ctx context.Context, q Question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	deadline, _ := ctx.Deadline() // the caller's, where it is earlier
	limit := time.Until(deadline).Round(time.Second)
	token, err := p.Kube.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, q.Account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{q.Audience}, ExpirationSeconds: new(int64(tokenSeconds)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: q.Pod.Spec.NodeName},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("get a token for %s (the Role %s in namespace %s allows it): %w", q.Of, q.Account, p.Namespace, err)
	}
	// Without a port number the proxy uses the first port that the pod names.
	request := p.Kube.CoreV1().RESTClient().Verb(q.Method).Namespace(p.Namespace).Resource("pods").Name("https:"+q.Pod.Name+":").SubResource("proxy").Suffix(q.Path).
		SetHeader(agentpod.TokenHeader, "Bearer "+token.Status.Token)
	if q.Body != nil {
		request.SetHeader("Content-Type", "application/json").Body(q.Body)
	}
	for name, values := range q.Query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	result := request.Do(ctx)
	answer, _ := result.Raw()
	err = result.Error() // the API server's own error, where it is one, unlike Raw's
	if text, answered := ofProgram(err); answered {
		return nil, fmt.Errorf("%s answers in pod %s: %s", q.Of, q.Pod.Name, text)
	}
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil, fmt.Errorf("%s does not answer in pod %s within %s", q.Of, q.Pod.Name, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("reach %s through the API server (the Role %s in namespace %s allows it): %w", q.Of, q.Account, p.Namespace, err)
	}
	return answer, nil
}

// ofProgram returns the text of an error that the program sent, and not the API server. The API
// server's errors are objects of kind Status; the program's are plain text.
func ofProgram(err error) (text string, is bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return strings.TrimSpace(cause.Message), true
		}
	}
	return "", false
}
