// SPDX-License-Identifier: Apache-2.0

package answering

import "net/netip"

// Version is the resourceVersion of a FloatingIP at which the API gave its address to a node, zero
// if not known. A greater version is newer.
type Version uint64

// Node is a node of the cluster. Another machine of the same name has another UID.
type Node struct {
	Name, UID string
}

// Is reports whether both are the same node. A node without a UID matches any node of its name.
func (n Node) Is(other Node) bool {
	return n.Name == other.Name && (n.UID == other.UID || n.UID == "" || other.UID == "")
}

// Kind is the kind of a Message.
type Kind uint8

const (
	// Assert says that From has the address by the version. It asks To, if given, to deny that To
	// answers for the address by an older version.
	Assert Kind = iota + 1
	// Deny says to To that From does not answer for the address by a version below Version. It has the
	// Nonce of the Assert that asked for it.
	Deny
	// Hello says that From is on the segment and answers by MAC. Address is an address of the node
	// there, if it has any. With a Nonce it answers a Call.
	Hello
	// Call is a Hello that asks for a Hello of To, known by its name. Without a To it asks all nodes
	// or, with a Share, one node in Share.
	Call
	// TakeOver is an Assert of a pod's twin, by the version at which the API named the twin: the
	// virtual machine runs in the twin by now. It closes the address also at nodes that have it by
	// this version.
	TakeOver
	// Yield is a Deny that answers a TakeOver: From has answered for the address until just now, so
	// nobody else does. From answers again only by a newer version.
	Yield
)

// Message is a statement of one node to the nodes of a segment. Anybody who hears it can repeat it
// later. An Assert or TakeOver stays true: a newer record wins. A denial, a Yield or a sign of life
// is true of a moment, so it counts only with the Nonce of the question.
type Message struct {
	Kind     Kind
	From, To Node
	Address  netip.Addr
	Version  Version
	MAC      string
	// Nonce is a random number of the node that asks, zero if the message has no question.
	Nonce uint64
	Share uint16
}

// Input is something that happened. Exactly the types below are Inputs.
type Input interface{ input() }

type (
	// Take says that the API gave an address to a pod of this node, by Version.
	Take struct {
		Address netip.Addr
		Version Version
		// Last is the node that had the address last, unless it is proved that it no longer answers.
		Last Node
		// OwnMAC is the MAC that the pod's interface has on every node, empty if nodes answer with their
		// own MAC.
		OwnMAC string
		// Failover: the pod asked to be moved from a node that is cut off.
		Failover bool
	}
	// Carry says that the agent found an address in its records when it started, or that the kernel
	// has stopped answering for it. Answers says whether the kernel answers.
	Carry struct {
		Address  netip.Addr
		Version  Version
		Last     Node
		OwnMAC   string
		Failover bool
		Answers  bool
		// Newest is from the last Close.
		Newest Version
		// Twin: the pod is a twin that has taken the address over.
		Twin bool
	}
	// Stand says that the API named a pod of this node as the twin of the address's pod, by Version:
	// a virtual machine moves there, and its address with it. Holder is the node of the address's pod.
	Stand struct {
		Address  netip.Addr
		Version  Version
		Holder   Node
		OwnMAC   string
		Failover bool
	}
	// Cut says that the virtual machine runs in the twin on this node, and nowhere else.
	Cut struct{ Address netip.Addr }
	// Leave says that this node no longer carries the address, and that its kernel does not answer for
	// it.
	Leave struct{ Address netip.Addr }
	// Heard is a message that another node sent, on the segment unless Unicast.
	Heard struct {
		Message
		Unicast bool
	}
	// Answered is an answer for an address on the segment, to any host's question, with the MAC in it.
	// Owner: the host has the address itself, and is no proxy for another host (RFC 5227, section
	// 2.1.1; RFC 4861, section 7.2.8).
	Answered struct {
		Address netip.Addr
		MAC     string
		Owner   bool
	}
	// Gateway is an answer of a gateway to a question for its address, with the MAC that it names.
	Gateway struct {
		Address netip.Addr
		MAC     string
	}
	// Carrier is a change of the link's carrier. Jitter, up to 200 ms, is how long this node waits
	// after the carrier is back, so that nodes do not all ask at once after the restart of a switch.
	Carrier struct {
		Up     bool
		Jitter Duration
	}
	// API says whether the API server was reached, by a TryAPI or a try of an AskAPI.
	API struct{ Reachable bool }
	// Verdict is the API's answer to the AskAPI of this Number.
	Verdict struct {
		Address netip.Addr
		Number  int
		// Mine: the address still belongs to this node's pod, by Version. Last is as in Take.
		Mine    bool
		Version Version
		Last    Node
		// Stands: the address does not, but the pod is the twin of the one to which it belongs, on Last.
		Stands bool
		// Twin is the node of the twin of this node's pod.
		Twin Node
	}
	// Recheck says that a Close failed; another Close follows if the address is still closed.
	Recheck struct{ Address netip.Addr }
	// Seek asks the segment for another node, by its name and with a Nonce, for the addresses, and for
	// controls. Without a name it asks which hosts have the addresses themselves. It decides nothing:
	// the caller sees the answers among its inputs.
	Seek struct {
		Node      string
		Nonce     uint64
		Addresses []netip.Addr
	}
	// Deaf says that the node neither hears the segment nor asks there, until Own. Time stands still
	// meanwhile.
	Deaf struct{}
	// Own ends Deaf. It has the MAC by which the node answers from now on and, if there is one, the
	// node's own address on the segment.
	Own struct {
		MAC     string
		Address netip.Addr
	}
	// Word is a person's statement that no other node answers for the address, whatever is heard. It
	// counts until the address is opened.
	Word struct{ Address netip.Addr }
)

func (Take) input()     {}
func (Carry) input()    {}
func (Stand) input()    {}
func (Cut) input()      {}
func (Leave) input()    {}
func (Heard) input()    {}
func (Answered) input() {}
func (Gateway) input()  {}
func (Carrier) input()  {}
func (API) input()      {}
func (Verdict) input()  {}
func (Seek) input()     {}
func (Deaf) input()     {}
func (Own) input()      {}
func (Word) input()     {}
func (Recheck) input()  {}

// Output is an action for the caller. Exactly the types below are Outputs.
type Output interface{ output() }

type (
	// Open makes the kernel answer for the address, and announces it.
	Open struct{ Address netip.Addr }
	// Close makes the kernel stop answering for the address. Route, interface and record stay. Newest,
	// if not zero, is kept in the record: another node has asserted the address by it.
	Close struct {
		Address netip.Addr
		Newest  Version
	}
	// Send sends a message to all nodes on the segment and, with a To, to that node's InternalIP, too.
	Send struct{ Message }
	// Question asks the segment once who answers for the address and, with Owner, which host has it
	// itself.
	Question struct {
		Address netip.Addr
		Owner   bool
	}
	// Control asks the segment once for the gateways and for Addresses, which are other nodes' own.
	Control struct{ Addresses []netip.Addr }
	// AskGateway asks a gateway of the segment once, without a broadcast where its MAC is known.
	AskGateway struct{}
	// TryAPI tries whether the API server is reached at all. An input API follows within seconds.
	TryAPI struct{}
	// AskAPI asks the API whose the address is; a Verdict with the same Number follows. The API is
	// asked once, and again if it was not reached.
	AskAPI struct {
		Address netip.Addr
		Number  int
	}
)

func (Open) output()       {}
func (Close) output()      {}
func (Send) output()       {}
func (Question) output()   {}
func (Control) output()    {}
func (AskGateway) output() {}
func (TryAPI) output()     {}
func (AskAPI) output()     {}
