// SPDX-License-Identifier: Apache-2.0

// Package agentport asks the agents of nodes at their ports, through the API server's proxy to their
// pods, with a token for the one agent: see package agentpod. Other programs of Berth's are asked alike.
package agentport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/agentpod"
)

// Ports asks agents. Safe for concurrent use.
type Ports struct {
	Kube kubernetes.Interface
	// Namespace is Berth's.
	Namespace string
}

const (
	// patience limits one question: agents answer within half a minute.
	patience = 40 * time.Second
	// tokenSeconds is how long a token is valid: as short as the API server allows.
	tokenSeconds = 600
)

// Get returns a resource of the agent in a pod.
func (p *Ports) Get(ctx context.Context, agent *v1.Pod, path string, query url.Values) ([]byte, error) {
	return p.Ask(ctx, Question{
		Method: http.MethodGet, Path: path, Query: query, Pod: agent, Of: "the agent of node " + agent.Spec.NodeName,
		Account: agentpod.Diagnosis, Audience: agentpod.Audience(agent.Spec.NodeName),
	})
}

// Question is a request to a program of Berth's at its port.
type Question struct {
	// Method is GET or POST; Path and Query are the resource's.
	Method, Path string
	Query        url.Values
	// Body is the contents of a POST, as JSON; nil: none.
	Body []byte
	// Pod is the program's, whose node the token ends with, and Of names the program in errors.
	Pod *v1.Pod
	Of  string
	// Account is the ServiceAccount of Berth's namespace whose token the program gets. A Role of its name lets users have
	// the token made. Audience is whom the token is for.
	Account, Audience string
}

// Ask puts a question to a program. The program's own error is returned as its text alone. It blocks, for patience at most.
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
	// Without a number it is the first port that the pod names.
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

// pathCarried is the agent's resource for the controller; agent/inquiry has its contents.
const pathCarried = "/v1/carried"

// Carried returns the addresses that a node carries, or is about to carry or to stop carrying: the
// answer of its ready agent. It blocks. Only the agent of that node can answer: the token is for it by
// the node's name, and the agent has the API server review the token by one of its own, which ends with
// its pod.
func (p *Ports) Carried(ctx context.Context, node string) ([]netip.Addr, error) {
	agents, err := p.Kube.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: agentpod.Selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		ResourceVersion: "0", // from the API server's memory
	})
	if err != nil {
		return nil, fmt.Errorf("find the agent of node %s: %w", node, err)
	}
	for i := range agents.Items {
		if !agentpod.IsReady(&agents.Items[i]) {
			continue
		}
		answer, err := get[struct {
			Addresses []netip.Addr `json:"addresses"`
		}](ctx, p, &agents.Items[i], pathCarried, nil)
		return answer.Addresses, err
	}
	return nil, fmt.Errorf("node %s has no ready agent", node)
}

// pathWitness is the agent's resource for questions about another node; agent/inquiry has its contents.
const pathWitness = "/v1/witness"

// Testimony is what an agent found out about another node.
type Testimony struct {
	// Control: in the network of the addresses the gateway, or a third node, answered the agent meanwhile, and so did one of the
	// question's controls, if it has any. Without it the other node's silence says nothing.
	Control bool `json:"control"`
	// Host: the other node's kernel answered, at an InternalIP.
	Host bool `json:"host"`
	// Agent: its agent answered.
	Agent bool `json:"agent"`
	// Addresses are the floating IPs for which a host answered, maybe a proxy for others.
	Addresses []Answered `json:"addresses"`
}

// Answered is an address, and the MACs of the hosts that answered for it.
type Answered struct {
	Address netip.Addr `json:"address"`
	MACs    []string   `json:"macs"`
}

// WitnessQuestion asks about another node.
type WitnessQuestion struct {
	// Node is its name, and Hosts are its InternalIPs.
	Node  string
	Hosts []netip.Addr
	// Controls are InternalIPs of nodes that live. The agent has no control where none of them answers. There may be none.
	Controls []netip.Addr
	// VLAN has the network of the floating IPs Addresses; 0 is untagged. Gateways are the network's.
	VLAN                int
	Gateways, Addresses []netip.Addr
}

// The most Hosts, Controls and Gateways, and Addresses, that agents take; agent/inquiry has them, too.
const (
	MostHosts     = 16
	MostAddresses = 1024
)

// Witness has the agent in a pod ask another node, and the segments of its own, whether that node answers. It blocks for about a
// second. Only that agent can answer, as in Carried.
func (p *Ports) Witness(ctx context.Context, agent *v1.Pod, q WitnessQuestion) (Testimony, error) {
	query := url.Values{"node": {q.Node}}
	for name, addrs := range map[string][]netip.Addr{"host": q.Hosts, "control": q.Controls, "gateway": q.Gateways, "address": q.Addresses} {
		for _, addr := range addrs {
			query.Add(name, addr.String())
		}
	}
	if q.VLAN != 0 {
		query.Set("vlan", strconv.Itoa(q.VLAN))
	}
	return get[Testimony](ctx, p, agent, pathWitness, query)
}

// get is Get of a resource in JSON.
func get[T any](ctx context.Context, p *Ports, agent *v1.Pod, path string, query url.Values) (answer T, err error) {
	raw, err := p.Get(ctx, agent, path, query)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return answer, fmt.Errorf("read the answer of the agent in pod %s: %w", agent.Name, err)
	}
	return answer, nil
}

// pathTakeOver is the agent's resource for a person's word; agent/inquiry has its contents.
const pathTakeOver = "/v1/take-over"

// TakeOver gives the agent in a pod the caller's word that no other node answers for an address for which its node waits: the node
// then answers. It needs the Role [agentpod.Operator]. It blocks.
func (p *Ports) TakeOver(ctx context.Context, agent *v1.Pod, addr netip.Addr) error {
	_, err := p.Ask(ctx, Question{
		Method: http.MethodPost, Path: pathTakeOver, Query: url.Values{"address": {addr.String()}}, Pod: agent, Of: "the agent of node " + agent.Spec.NodeName,
		Account: agentpod.Operator, Audience: agentpod.Audience(agent.Spec.NodeName),
	})
	return err
}

// ofProgram returns the text of an error that is a program's, and not the API server's: it is no object.
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
