// SPDX-License-Identifier: Apache-2.0

// Package podrequest reads pods and pod templates: the extended resource and the
// annotations that ask for floating IPs, Berth's and optionally Galaxy's ([Reader]), the
// annotation of a bound pod that names its FloatingIPs ([NamesOf]), and the owner of a
// pod's addresses ([OwnerOf]).
//
// The scheduler, the controller, the importer and the node agent share this package, so that they
// read pods in the same way. It does not know which addresses exist, and does no I/O.
package podrequest
