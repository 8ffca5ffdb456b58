// SPDX-License-Identifier: Apache-2.0

// Package ipamtest is an API server for tests of code that reads and writes Berth's objects. It
// keeps objects in memory and treats requests as the API server does: one object of a name,
// resource versions that grow, conflicts if a write is based on another version or UID, no new
// version if nothing changes, and watches. It can be told to fail, and records every write.
//
// Tests reach it with the real client ([Server.Config]), so the code's requests and its use of
// answers are tested, too. It validates as the CRDs in manifests/crd say. It has no admission,
// selectors, managed fields and finalizers. test/scheduler uses a real API server. Both pass
// [Contract].
package ipamtest
