// SPDX-License-Identifier: Apache-2.0

// Package ipamtest is an API server for tests of code that reads and writes Berth's
// objects. It keeps objects in memory and treats requests as the API server does:
// one object of a name, resource versions that grow, conflicts where a write was
// decided on another version or UID, no new version where nothing changes, and
// watches. It can be told to fail, and notes every write.
//
// It stands behind the real client ([Server.Config]), so the code's requests and
// its use of answers are tested, too. It validates as the CRDs in manifests/crd
// say. It knows nothing of admission, of selectors, of managed fields and of
// finalizers: test/scheduler has a real API server. Both pass [Contract].
package ipamtest
