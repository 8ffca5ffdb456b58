// SPDX-License-Identifier: Apache-2.0

// Package answering decides for which floating IPs a node answers on one layer 2 segment, so that
// no two nodes answer for one, also where a node lost the API server and an address moved from it.
// It is a pure state machine: a caller tells a Link what happened, at which time, and does what
// Step returns, in that order. It sends nothing, asks nobody and knows no clock.
//
// # Rules
//
//   - Ask before answering. Before a node answers for an address it asserts it on the segment and
//     asks who answers for it, as any host would. It answers when nobody does, and the silence counts. What answers before is closed.
//   - The newer record wins. An assertion has the resourceVersion at which the API said that the
//     address is the node's; of the versions of one kind the greater is the later (KEP-5504). A node
//     that answers by an older one asks the API, and falls silent 50 ms later where that has not refuted
//     the assertion: the asserting node waits for longer. One that asks falls silent at once. One that has
//     a newer one asserts it in reply. So two that ask at once do not both answer.
//   - Assert until denied. A node goes on asserting until the node that had the address last has
//     denied that it
//     answers for it. Each node asserts all its addresses once a minute, too, for holders that no record names.
//   - An owner counts, a proxy does not always. A host that has the address itself, by its answer
//     to a probe, keeps the node from answering. One
//     that is no node and goes on for three seconds is in conflict with the pod. The word of a proxy, as a router's, counts where
//     another node may answer by proxy.
//   - Silent when cut off. A link without carrier answers for nothing. When it is back, silence
//     opens its
//     addresses again, or the API 100 ms after the node has asserted them: a holder that does not know of the record falls silent
//     first. A node that reaches neither a gateway nor the API, and fewer than half of its peers, closes the addresses
//     whose pods have asked for failover. Only a node with such pods looks whether it does: it asks the gateway; where that is
//     silent it tries the API; where that is, too, it calls its peers. These are the nodes that answered its calls while it
//     reached one of both.
//   - Fresh answers. Anybody on the segment can repeat what was said there. An assertion stays
//     true. A denial, an answer to a call, and
//     so that a node lives, have the nonce of the question; they are as old as that.
//
// The word is PIM's (RFC 7761, section 4.6): its routers find by Assert messages the one that
// forwards to a segment. There the better metric wins.
//
// # Silence
//
// Three questions, 100 ms apart, and no answer. They count at once for an address that no node had
// before. Otherwise each needs a control: an answer on this segment, after it, to another question
// of the same form and family, as a port that a switch still blocks is silent, too, and one to
// which a switch passes no multicast is silent for IPv6 alone. Where the last node has not denied
// the address, this node had lost its carrier, or somebody did answer, it takes eight in a row,
// three seconds, as frames get lost. Without controls silence counts after a minute, or after three
// seconds where this node itself had the address last.
//
// A node asks for addresses that it opens again in turns, so that a switch's restart without an API
// server does not fill the segment with questions. All questions about one address are within its
// turn. Addresses of pods that start have none.
//
// The API's word opens an address again whoever answers: a node whose agent is dead may do so by an
// older record, and goes on until its agent is back. That is the only known way in which two nodes
// that always heard each other answer.
//
// A denial alone is no silence: an older holder than the last may answer. After a pause of the
// agent, of more than a second, all questions begin anew, the ones to the API, too: an answer that
// came in the pause does not count.
package answering
