// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"k8s.io/klog/v2"
)

// journal reads in GoBGP's log why a session is not established, which it says nowhere else, and
// passes warnings on.
type journal struct{ of *Session }

// Enabled implements slog.Handler.
func (j *journal) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler. The attributes name the router, of which there is one.
func (j *journal) WithAttrs([]slog.Attr) slog.Handler { return j }

// WithGroup implements slog.Handler.
func (j *journal) WithGroup(string) slog.Handler { return j }

// Handle implements slog.Handler.
func (j *journal) Handle(_ context.Context, record slog.Record) error {
	attributes := map[string]slog.Value{}
	record.Attrs(func(a slog.Attr) bool {
		attributes[a.Key] = a.Value
		return true
	})
	if why := j.of.reason(record.Message, attributes); why != "" {
		j.of.failed(why)
	}
	if record.Level >= slog.LevelWarn && record.Message != "failed to stop BGP server" {
		fields := []any{"router", j.of.Peer}
		for name, value := range attributes {
			fields = append(fields, name, value.String())
		}
		klog.V(2).InfoS("GoBGP: "+record.Message, fields...)
	}
	return nil
}

// reason returns a sentence for a message of GoBGP; empty: it says nothing about the session.
func (s *Session) reason(message string, attributes map[string]slog.Value) string {
	switch message {
	case "failed to connect":
		return s.unconnected(attributes["Error"].String())
	case "outgoing connection IO error":
		return fmt.Sprintf("%s took the connection and closed it: it may have no neighbor with this node's address", s.Peer)
	case "outgoing connection closing due to hold timer expired in OPEN SENT state":
		return fmt.Sprintf("%s took the connection and said nothing", s.Peer)
	case "sent notification":
		return s.refused(number(attributes["Code"]), number(attributes["Subcode"]))
	case "received notification":
		return fmt.Sprintf("%s ended the session: %s", s.Peer, notification(number(attributes["Code"]), number(attributes["Subcode"])))
	case "hold timer expired":
		return fmt.Sprintf("%s said nothing for the hold time", s.Peer)
	case "state changed":
		// A NOTIFICATION that comes in place of the first KEEPALIVE is in no other message.
		if attributes["old"].String() == bgp.BGP_FSM_OPENCONFIRM.String() && attributes["new"].String() == bgp.BGP_FSM_IDLE.String() {
			return s.refused(bgp.BGP_ERROR_FSM_ERROR, 0)
		}
	case "Peer Down":
		// GoBGP's words, after which one of the others may come.
		return fmt.Sprintf("the session with %s ended: %s", s.Peer, attributes["Reason"].String())
	}
	return ""
}

// unconnected says why a connection failed. The kernel drops packets without the right signature or
// TTL, so that all of these look alike.
func (s *Session) unconnected(err string) string {
	if !strings.Contains(err, "timeout") {
		return fmt.Sprintf("connect to %s: %s", s.Peer, err)
	}
	password := "the router must have no password for this node, as the Secret has none for this BGPPeer"
	if s.Password != "" {
		password = "the router must have the password that the Secret has for this BGPPeer"
	}
	ttl := ""
	if s.Multihop == 1 && s.Interface == "" {
		ttl = ", and the router must use TTL security, as multihop is 1"
	}
	return fmt.Sprintf("%s does not answer at port %d: it must be reachable, %s%s", s.Peer, s.Port, password, ttl)
}

// refused says why this side ended a session.
func (s *Session) refused(code, subcode uint8) string {
	switch {
	case code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == bgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return fmt.Sprintf("%s has another ASN than %d: correct spec.peer.asn", s.Peer, s.PeerASN)
	case code == bgp.BGP_ERROR_FSM_ERROR:
		return fmt.Sprintf("%s refused the session: it may know this node by another ASN than %d, or not at all; its log says why", s.Peer, s.LocalASN)
	}
	return fmt.Sprintf("this side ended the session with %s: %s", s.Peer, notification(code, subcode))
}

// number returns a code, 0 where there is none.
func number(of slog.Value) uint8 {
	if of.Kind() != slog.KindInt64 {
		return 0
	}
	return uint8(of.Int64())
}

func notification(code, subcode uint8) string {
	return bgp.NewNotificationErrorCode(code, subcode).String()
}
