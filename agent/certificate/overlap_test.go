// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/ipam/agentca/signer"
)

// cluster has the controller's signer and some agents, whose kubelets bring them the ConfigMap
// late.
type cluster struct {
	t       *testing.T
	kube    kubernetes.Interface
	keepers map[answering.Node]*Keeper
}

// requester asks with a token of its node's agent, as the API server sees it.
type requester struct {
	Requests
	node answering.Node
	made int
}

func (r *requester) Create(ctx context.Context, request *certificatesv1.CertificateSigningRequest, options metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	r.made++
	request.Name = fmt.Sprint(r.node.Name, "-", r.made)
	request.Spec.Extra = map[string]certificatesv1.ExtraValue{
		"authentication.kubernetes.io/node-name": {r.node.Name}, "authentication.kubernetes.io/node-uid": {r.node.UID},
	}
	return r.Requests.Create(ctx, request, options)
}

// newCluster runs until stop is called.
func newCluster(t *testing.T, lags ...time.Duration) (c *cluster, stop func()) {
	t.Helper()
	about := metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-agent-ca"}
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "c"}},
		&corev1.Secret{ObjectMeta: about}, &corev1.ConfigMap{ObjectMeta: about})
	kube.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	c = &cluster{t: t, kube: kube, keepers: map[answering.Node]*Keeper{}}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { signer.New(kube, "berth-system").Run(ctx) })
	for i, lag := range lags {
		node := answering.Node{Name: fmt.Sprint("node", i), UID: fmt.Sprint("u", i)}
		if _, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: types.UID(node.UID)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		bundle := filepath.Join(dir, "ca.crt")
		group.Go(func() { c.bring(ctx, bundle, lag) })
		keeper := New(ctx, Options{
			Bundle: bundle, File: filepath.Join(dir, "certificate.pem"), Node: node,
			Requests: &requester{Requests: kube.CertificatesV1().CertificateSigningRequests(), node: node},
		})
		c.keepers[node] = keeper
		group.Go(func() { _ = keeper.Run(ctx) })
	}
	return c, func() {
		cancel()
		group.Wait()
	}
}

// config returns the authorities that are published now.
func (c *cluster) config(ctx context.Context) string {
	config, err := c.kube.CoreV1().ConfigMaps("berth-system").Get(ctx, "berth-agent-ca", metav1.GetOptions{})
	if err != nil {
		c.t.Error(err)
		return ""
	}
	return config.Data["ca.crt"]
}

// bring writes what the ConfigMap has to a file, some time later, as a kubelet.
func (c *cluster) bring(ctx context.Context, file string, lag time.Duration) {
	const each = 10 * time.Second
	var before []string
	for ctx.Err() == nil {
		before = append(before, c.config(ctx))
		if late := len(before) - 1 - int(lag/each); late >= 0 {
			if err := os.WriteFile(file, []byte(before[late]), 0o600); err != nil {
				c.t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(each):
		}
	}
}

// allHear fails the test where a node does not hear another in this time.
func (c *cluster) allHear(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); pass(10 * time.Second) {
		for from, speaker := range c.keepers {
			codec, err := speaker.Codec()
			if err != nil {
				c.t.Fatalf("%s: %v", from.Name, err)
			}
			datagrams, err := codec.Encode(netip.Addr{}, []answering.Message{{Kind: answering.Call, From: from}})
			if err != nil {
				c.t.Fatal(err)
			}
			for to, listener := range c.keepers {
				heard, err := listener.Codec()
				if err == nil {
					_, _, err = heard.Decode(datagrams[0], nil, nil)
				}
				if err != nil {
					c.t.Fatalf("%s does not hear %s: %v", to.Name, from.Name, err)
				}
			}
		}
	}
}

// empty removes the data of the Secret or the ConfigMap, as an administrator does.
func (c *cluster) empty(kind string) {
	c.t.Helper()
	about := metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-agent-ca"}
	var err error
	if kind == "Secret" {
		_, err = c.kube.CoreV1().Secrets("berth-system").Update(c.t.Context(), &corev1.Secret{ObjectMeta: about}, metav1.UpdateOptions{})
	} else {
		_, err = c.kube.CoreV1().ConfigMaps("berth-system").Update(c.t.Context(), &corev1.ConfigMap{ObjectMeta: about}, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// While an authority is replaced, and when the old one is not believed any more twenty minutes
// later, all nodes hear each other all the while, though kubelets bring the ConfigMap up to two
// minutes late.
func TestOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCluster(t, 0, time.Minute, 2*time.Minute)
		defer stop()
		pass(5 * time.Minute)
		c.allHear(5 * time.Minute)
		first := c.config(t.Context())
		old, err := agentca.ParseBundle([]byte(first))
		if err != nil || len(old) != 1 {
			t.Fatalf("there are %d authorities, %v", len(old), err)
		}
		codec, err := c.keepers[answering.Node{Name: "node0", UID: "u0"}].Codec()
		if err != nil {
			t.Fatal(err)
		}
		stolen, err := codec.Encode(netip.Addr{}, []answering.Message{{Kind: answering.Call, From: answering.Node{Name: "node0", UID: "u0"}}})
		if err != nil {
			t.Fatal(err)
		}

		c.empty("Secret")
		c.allHear(20 * time.Minute)
		c.empty("ConfigMap")
		c.allHear(10 * time.Minute)
		last, err := agentca.ParseBundle([]byte(c.config(t.Context())))
		if err != nil || len(last) != 1 || last[0].Equal(old[0]) {
			t.Fatalf("there are %d authorities, %v", len(last), err)
		}
		reader, err := datagram.NewCodec([]*x509.Certificate{last[0]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := reader.Decode(stolen[0], nil, nil); err == nil {
			t.Error("a certificate of the old authority is believed")
		}
	})
}
