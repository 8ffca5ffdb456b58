// SPDX-License-Identifier: Apache-2.0

// Package names keeps the names of addresses in DNS, for the pools that have a spec.dnsDomain: an A
// or AAAA record from the name to the address, and a PTR record back, from when a pod first has the
// address until it is freed. It writes them as DNSEndpoint objects of ExternalDNS, which knows the
// DNS servers, and asks nobody else.
//
// A name is LABEL.NAMESPACE.DOMAIN, without a template, so that no tenant can have another's: a
// namespace's name has no dot, the label is refused if it has one, and the domain is an
// administrator's. So two namespaces have no name in common, whatever domains there are. The label
// is the pod's name where pods keep theirs (StatefulSet, bare pod), and else the owner's, which
// then has several addresses: the random names of a Deployment's pods would be new with each
// update, as would be all of its records.
//
// The objects are a fixed number of parts, in Berth's namespace, into which records come by a hash.
// One for each address would be as many writes again as there are addresses, and again of
// ExternalDNS, which writes a status for each object that changed, one after the other. One for
// each pool or namespace would outgrow the 1,000 records of ExternalDNS' definition, and then
// etcd's 1.5 MB. A change of many addresses is a write of each part, at most each [interval]. With
// 10,000 addresses a part has 40 records and 5 kB, with 150,000 it has 600 and 100 kB.
package names
