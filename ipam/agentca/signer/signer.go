// SPDX-License-Identifier: Apache-2.0

// Package signer signs the certificates of agents: it approves CertificateSigningRequests for its
// signer name, or denies them with a reason. It makes and publishes the authority that signs.
//
// The node in a certificate comes from the requester's token, which the API server has verified. It
// never comes from the requester's own text.
package signer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	certificates "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/agentca"
)

// interval is the time between two checks of the authority: an emptied Secret is filled again after
// it.
const interval = time.Minute

// workers is how many requests are signed at once: each request waits for the API server a few
// times.
const workers = 5

// Signer signs on the leader.
type Signer struct {
	kube      kubernetes.Interface
	namespace string
	// authority signs; nil while some agents may not know it yet.
	authority atomic.Pointer[agentca.Authority]

	// Of keepAuthority: the UID of the namespace kube-system, since when the authority was seen in the
	// bundle, and the last error.
	cluster   string
	published *x509.Certificate
	since     time.Time
	said      string
}

// New returns a Signer for the agents of a cluster whose Berth is in the namespace.
func New(kube kubernetes.Interface, namespace string) *Signer {
	return &Signer{kube: kube, namespace: namespace}
}

// Run signs until ctx ends.
func (s *Signer) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute))
	informer := certificates.NewFilteredCertificateSigningRequestInformer(s.kube, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.signerName", agentca.SignerName).String()
	})
	add := func(object any) {
		if request, ok := object.(*certificatesv1.CertificateSigningRequest); ok && !isDone(request) {
			queue.Add(request.Name)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }}); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch the requests of agents for certificates")
		return
	}
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var group wait.Group
	defer group.Wait()
	group.StartWithContext(ctx, func(ctx context.Context) { wait.UntilWithContext(ctx, s.keepAuthority, interval) })
	group.StartWithContext(ctx, informer.RunWithContext)
	for range workers {
		group.StartWithContext(ctx, func(ctx context.Context) {
			for name, ended := queue.Get(); !ended; name, ended = queue.Get() {
				s.work(ctx, queue, informer.GetStore(), name)
			}
		})
	}
}

func (s *Signer) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], store cache.Store, name string) {
	defer queue.Done(name)
	object, exists, err := store.GetByKey(name)
	if request, ok := object.(*certificatesv1.CertificateSigningRequest); err == nil && exists && ok {
		err = s.handle(ctx, request.DeepCopy())
	}
	if err == nil {
		queue.Forget(name)
		return
	}
	if ctx.Err() == nil && !errors.Is(err, errNoAuthority) {
		klog.FromContext(ctx).Error(err, "Cannot answer an agent's request for a certificate, will try again", "request", name)
	}
	queue.AddRateLimited(name)
}

var errNoAuthority = errors.New("agents do not know the authority for their certificates yet")

// handle signs or denies a request. It changes the request, which must be a copy.
func (s *Signer) handle(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if isDone(request) {
		return nil
	}
	asked, err := s.check(ctx, request)
	var refusal *refusal
	switch {
	case errors.As(err, &refusal):
		return s.refuse(ctx, request, refusal)
	case err != nil:
		return err
	}
	authority := s.authority.Load()
	if authority == nil {
		return errNoAuthority
	}
	requests := s.kube.CertificatesV1().CertificateSigningRequests()
	if !has(request, certificatesv1.CertificateApproved) {
		set(request, certificatesv1.CertificateApproved, "Agent", "the requester is the agent of node "+asked.name)
		if request, err = requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("approve: %w", err)
		}
	}
	if request.Status.Certificate, err = authority.Certify(asked.name, asked.uid, asked.key); err != nil {
		return err
	}
	if _, err := requests.UpdateStatus(ctx, request, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Signed an agent's certificate", "node", asked.name, "request", request.Name)
	return nil
}

// refuse denies a request. If somebody has approved the request, it marks the request as failed.
func (s *Signer) refuse(ctx context.Context, request *certificatesv1.CertificateSigningRequest, why *refusal) error {
	klog.FromContext(ctx).Info("Refused a request for an agent's certificate", "request", request.Name, "user", request.Spec.Username, "why", why.Error())
	requests := s.kube.CertificatesV1().CertificateSigningRequests()
	var err error
	if has(request, certificatesv1.CertificateApproved) {
		set(request, certificatesv1.CertificateFailed, "NoAgent", why.Error())
		_, err = requests.UpdateStatus(ctx, request, metav1.UpdateOptions{})
	} else {
		set(request, certificatesv1.CertificateDenied, "NoAgent", why.Error())
		_, err = requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("refuse: %w", err)
	}
	return nil
}

func isDone(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Status.Certificate) > 0 || has(request, certificatesv1.CertificateDenied) || has(request, certificatesv1.CertificateFailed)
}

func has(request *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == condition })
}

func set(request *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType, reason, message string) {
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
	})
}
