// SPDX-License-Identifier: Apache-2.0

// Package answering decides for which floating IPs a node answers on one layer 2 segment. No two
// nodes answer for the same address, even if a node lost the API server and an address moved away
// from it. The package is a pure state machine: a caller tells a Link what happened, and when, and
// carries out the outputs of Step in their order. It sends nothing, asks nobody and knows no clock.
//
// # Rules
//
//   - Ask before answering. Before a node answers for an address, it asserts the address on the
//     segment and asks who answers for it, as any host would. It answers when nobody does and the
//     silence counts. An address that it answered for before is closed meanwhile.
//   - The newer record wins. An assertion has the resourceVersion at which the API gave the address
//     to the node; of two versions of one kind the greater one is newer (KEP-5504). A node that
//     answers by an older version asks the API. It falls silent 50 ms later unless the API has
//     refuted the assertion: the asserting node waits longer. A node that is still asking falls
//     silent at once. A node with a newer version asserts it in reply. So two nodes that ask at
//     once do not both answer.
//   - Assert until denied. A node keeps asserting until the last node of the address has denied
//     that it answers. Each node also asserts all its addresses once a minute, for holders that no
//     record names.
//   - An owner counts, a proxy does not always. A host whose answer to a probe says that it has the
//     address itself keeps the node from answering. If the host is no node and keeps answering for
//     three seconds, it is in conflict with the pod. The answer of a proxy, such as a router,
//     counts if another node may answer by proxy.
//   - Silent when cut off. A node answers for no address of a link without carrier. After the
//     carrier is back, silence opens the addresses again, or the API does 100 ms after the node has
//     asserted them: a holder that does not know of the record falls silent first. A node that
//     reaches neither a gateway nor the API, and fewer than half of its peers, closes the addresses
//     of pods that asked for failover. Only a node with such pods checks this: it asks the gateway;
//     if the gateway is silent, it tries the API; if the API is silent, too, it calls its peers.
//     Its peers are the nodes that answered its calls while it reached the gateway or the API.
//   - The virtual machine is where its address is. If a virtual machine migrates, the API names the
//     target's pod as the twin of the address's pod. The twin stands by: it neither asserts nor
//     answers. As soon as the machine runs there, by the first frame of its guest, the twin says so:
//     TakeOver is its assertion by the version of the record that it knows, also against a node that
//     has the address by the same version. That node asks the API first, as for any newer record,
//     unless it knows the twin from the API. It closes the address before it says Yield, and the
//     twin answers at once: a node that answered until then proves that nobody else does. A node
//     that did not answer says Deny, and the twin asks as any node. Until the API has followed, the
//     twin repeats TakeOver twice a second and in reply to each assertion by its own version, and
//     the other node stays closed: it answers again by a newer record alone that names no such twin.
//     While a record names a twin the API's word alone opens nothing.
//   - Fresh answers. Anybody on the segment can repeat earlier messages. An assertion stays true. A
//     denial, a Yield and an answer to a call are true of a moment: each has the nonce of the
//     question, and is as old as the question.
//
// The word assertion is from PIM (RFC 7761, section 4.6): by Assert messages its routers agree on
// the router that forwards to a segment. There the better metric wins.
//
// # Silence
//
// Silence is three questions, 100 ms apart, without an answer. It counts at once for an address
// that no node had before. Otherwise each question needs a control: a later answer on this segment
// to another question of the same form and family. The reason is that a port that a switch still
// blocks is silent, too, and a port without multicast is silent for IPv6 alone. Eight questions in
// a row, three seconds, are necessary if the last node has not denied the address, this node had
// lost its carrier, or somebody did answer: frames get lost. Without controls silence counts after
// a minute, or after three seconds if this node itself had the address last.
//
// A node takes turns to ask for addresses that it opens again, so that a switch's restart without
// an API server does not fill the segment with questions. All questions about an address are within
// its turn. Addresses of pods that start do not wait for a turn.
//
// The API's verdict opens an address again even if another host answers. A node whose agent is dead
// may answer by an older record until its agent is back. This is the only known case in which two
// nodes answer although they always heard each other.
//
// A denial alone is no silence: a holder before the last one may answer. After a pause of the agent
// of more than a second all questions begin anew, also to the API: an answer from the pause does
// not count.
package answering
