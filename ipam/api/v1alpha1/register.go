// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of Berth's objects.
const GroupName = "berth.dev"

// SchemeGroupVersion is the group and version of the objects in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// SchemeBuilder and AddToScheme register the objects of this package.
var (
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	AddToScheme   = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&IPPool{}, &IPPoolList{},
		&IPClaim{}, &IPClaimList{},
		&FloatingIP{}, &FloatingIPList{},
		&NetworkProfile{}, &NetworkProfileList{},
		&BGPPeer{}, &BGPPeerList{},
		&NodeAssignment{}, &NodeAssignmentList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

// Kinds returns all kinds of Berth's objects, such as IPPool, sorted.
func Kinds() (kinds []string) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		panic(err) // a mistake in this file
	}
	known := scheme.KnownTypes(SchemeGroupVersion)
	for kind := range known {
		if _, listed := known[kind+"List"]; listed {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// Resource returns the resource of one of Berth's kinds.
func Resource(kind string) schema.GroupVersionResource {
	return SchemeGroupVersion.WithResource(strings.ToLower(kind) + "s")
}
