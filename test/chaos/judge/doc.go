// SPDX-License-Identifier: Apache-2.0

// Package judge says whether a history of API objects keeps Berth's promises. It
// knows nothing but the objects, in the order in which the API server wrote them,
// and shares no code with what it judges: the rules are written down here anew,
// from the documentation.
//
// [State.Apply] takes the history event by event and complains at once about what
// may never be:
//
//   - a pod is bound without the addresses that it asked for, or with one that
//     another live pod has;
//   - an address is taken from a live pod;
//   - an address that policy keeps is freed, or given to another owner;
//   - an address at rest is used before its cooldown is over.
//
// [State.AtRest] complains about what may not stay: addresses without a reason,
// pods without a node, counts that are wrong.
//
// A program that frees an address decides a moment earlier than it writes. So the judge
// asks whether policy allowed it at any moment since the FloatingIP was
// written last: the API server refuses a write that was decided on an older one.
package judge
