// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// OfClaim makes a pod draw from an IPClaim.
func OfClaim(name string) func(*v1.Pod) { return Annotated(v1alpha1.AnnotationClaim, name) }

// Claim makes an IPClaim.
func (w *World) Claim(name string, spec v1alpha1.IPClaimSpec) {
	w.T.Helper()
	_, err := w.Berth.IPClaims(Namespace).Create(w.Ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
}

// ClaimBecomes waits until a claim's status is
// "addresses=allocated+retained reason", with "Oversized" after it if it is, and
// has all texts in Ready's message.
func (w *World) ClaimBecomes(name, want string, texts ...string) {
	w.T.Helper()
	w.Eventually("wait for the status of IPClaim "+name, func() error {
		claim, err := w.Berth.IPClaims(Namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := claim.Status
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ClaimReady)
		if ready == nil || s.ObservedGeneration != claim.Generation {
			return errors.New("it has none of this generation")
		}
		got := fmt.Sprintf("%d=%d+%d %s", s.Addresses, s.Allocated, s.Retained, ready.Reason)
		if meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ClaimOversized) {
			got += " Oversized"
		}
		if got != want {
			return fmt.Errorf("it is %q, want %q; Ready says %q", got, want, ready.Message)
		}
		for _, text := range texts {
			if !strings.Contains(ready.Message, text) {
				return fmt.Errorf("its condition Ready says %q, want %q in it", ready.Message, text)
			}
		}
		return nil
	})
}

// PatchClaim changes an IPClaim by a merge patch.
func (w *World) PatchClaim(name, patch string) {
	w.T.Helper()
	Patch(w, w.Berth.IPClaims(Namespace), name, "%s", patch)
}

// DeleteClaim deletes an IPClaim.
func (w *World) DeleteClaim(name string) {
	w.T.Helper()
	if err := w.Berth.IPClaims(Namespace).Delete(w.Ctx, name, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
