// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Annotation is the annotation of a pod that names its networks.
const Annotation = nadv1.NetworkAttachmentAnnot

// AllNamespaces shares the NetworkAttachmentDefinitions of every namespace.
const AllNamespaces = "*"

var (
	// ErrAnnotation is returned for an annotation that cannot be served as it is.
	ErrAnnotation = errors.New("annotation " + Annotation)
	// ErrNoDefinition is returned where a NetworkAttachmentDefinition does not exist,
	// or the pod may not use it.
	ErrNoDefinition = errors.New("no such NetworkAttachmentDefinition")
	// ErrNotAllowed is returned for a network that may be written by users and uses more than they
	// may.
	ErrNotAllowed = errors.New("network is not allowed")
)

// Definitions reads a NetworkAttachmentDefinition live. Safe in parallel; it blocks for
// one request.
type Definitions func(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error)

// Reader reads the networks of pods. Safe in parallel.
type Reader struct {
	Get Definitions
	// Shared are the namespaces whose networks every pod may use. Namespaces named here are the
	// administrator's.
	Shared []string
	// Allowed lists the plugins for all other networks.
	Allowed Allowed
}

// Network is a network that a pod names.
type Network struct {
	// Definition is namespace/name of the NetworkAttachmentDefinition.
	Definition string
	// Name of the network where its configuration names none, and of the network on
	// the node's disk where Config is empty.
	Name string
	// Config is a CNI configuration list, or the configuration of one plugin.
	Config json.RawMessage
	// IfName is the interface in the container.
	IfName string
	// Capabilities is the runtimeConfig that the pod asks for, and Args is args.cni of
	// the plugins' configurations.
	Capabilities map[string]json.RawMessage
	Args         map[string]json.RawMessage
	// IPs are the addresses that the pod asks for; Capabilities has them, too.
	IPs []string
	// DefaultRoute are the gateways of the pod's default route, one for each family. At most one
	// network of a pod has them.
	DefaultRoute []netip.Addr
}

// Networks returns the networks that the annotation of a pod of the namespace names, in
// its order. first is the interface of the pod's first network. It returns none for an
// empty annotation.
func (r *Reader) Networks(ctx context.Context, namespace, annotation, first string) ([]Network, error) {
	if annotation == "" {
		return nil, nil
	}
	selections, err := parse(annotation, namespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAnnotation, err)
	}
	names, err := interfaceNames(selections, first)
	if err != nil {
		return nil, err
	}
	if err := oneDefaultRoute(selections); err != nil {
		return nil, err
	}
	networks := make([]Network, 0, len(selections))
	for i, selection := range selections {
		network, err := r.network(ctx, namespace, selection)
		if err != nil {
			return nil, err
		}
		network.IfName = names[i]
		networks = append(networks, network)
	}
	return networks, nil
}

// parse reads the annotation in its short form, names separated by commas, or as JSON. The
// standard's own library is not used, because it imports client-go's whole clientset.
func parse(annotation, namespace string) ([]*nadv1.NetworkSelectionElement, error) {
	var selections []*nadv1.NetworkSelectionElement
	if strings.ContainsAny(annotation, `[{"`) {
		if err := json.Unmarshal([]byte(annotation), &selections); err != nil {
			return nil, fmt.Errorf("read it as JSON: %w", err)
		}
	} else {
		for text := range strings.SplitSeq(annotation, ",") {
			selection, err := parseShort(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			selections = append(selections, selection)
		}
	}
	for i, selection := range selections {
		if selection == nil {
			return nil, fmt.Errorf("element %d is null", i)
		}
		if selection.Namespace == "" {
			selection.Namespace = namespace
		}
	}
	return selections, nil
}

// label matches each part of the short form.
var label = regexp.MustCompile("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")

// parseShort reads a network of the short form, namespace/name@interface. Only the name is
// required.
func parseShort(text string) (*nadv1.NetworkSelectionElement, error) {
	namespace, rest, found := strings.Cut(text, "/")
	if !found {
		namespace, rest = "", text
	}
	name, ifName, _ := strings.Cut(rest, "@")
	selection := &nadv1.NetworkSelectionElement{Namespace: strings.TrimSpace(namespace), Name: strings.TrimSpace(name), InterfaceRequest: strings.TrimSpace(ifName)}
	for _, part := range []string{selection.Namespace, selection.Name, selection.InterfaceRequest} {
		if part != "" && !label.MatchString(part) {
			return nil, fmt.Errorf("%q is not namespace/name@interface: %q must consist of lower case letters, digits and inner hyphens", text, part)
		}
	}
	return selection, nil
}

// oneDefaultRoute refuses default routes on several networks, as the standard does.
func oneDefaultRoute(selections []*nadv1.NetworkSelectionElement) error {
	var holder *nadv1.NetworkSelectionElement
	for _, s := range selections {
		if len(s.GatewayRequest) == 0 {
			continue
		}
		if holder != nil {
			return fmt.Errorf("%w: the networks %s/%s and %s/%s both have default-route; name it at one of them", ErrAnnotation, holder.Namespace, holder.Name, s.Namespace, s.Name)
		}
		holder = s
	}
	return nil
}

// gatewaysOf returns the gateways of default-route.
func gatewaysOf(s *nadv1.NetworkSelectionElement) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, raw := range s.GatewayRequest {
		gateway, ok := netip.AddrFromSlice(raw)
		gateway = gateway.Unmap()
		if !ok || gateway.IsUnspecified() || gateway.IsMulticast() || gateway.IsLoopback() {
			return nil, fmt.Errorf("default-route has %q, which is not the address of a gateway", raw)
		}
		if slices.ContainsFunc(all, func(other netip.Addr) bool { return other.Is4() == gateway.Is4() }) {
			return nil, fmt.Errorf("default-route has more than one gateway of a family: %v; name one for IPv4 and one for IPv6", s.GatewayRequest)
		}
		all = append(all, gateway)
	}
	return all, nil
}

func (r *Reader) network(ctx context.Context, namespace string, s *nadv1.NetworkSelectionElement) (Network, error) {
	n := Network{Definition: s.Namespace + "/" + s.Name, Name: s.Name, IPs: s.IPRequest}
	var errs [3]error
	n.Capabilities, errs[0] = capabilities(s)
	n.DefaultRoute, errs[1] = gatewaysOf(s)
	n.Args, errs[2] = arguments(s)
	if err := errors.Join(errs[:]...); err != nil {
		return Network{}, fmt.Errorf("%w: network %s: %w", ErrAnnotation, n.Definition, err)
	}
	if s.Namespace != namespace && !slices.Contains(r.Shared, s.Namespace) && !slices.Contains(r.Shared, AllNamespaces) {
		return Network{}, fmt.Errorf("%w: %s: a pod of namespace %s may not use the networks of namespace %s; create the NetworkAttachmentDefinition in %s, or share %s with the agent's option --network-namespaces",
			ErrNoDefinition, n.Definition, namespace, s.Namespace, namespace, s.Namespace)
	}
	definition, err := r.Get(ctx, s.Namespace, s.Name)
	if apierrors.IsNotFound(err) {
		return Network{}, fmt.Errorf("%w: %s: %w", ErrNoDefinition, n.Definition, err)
	}
	if err != nil {
		return Network{}, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", n.Definition, err)
	}
	if resource := definition.Annotations[annotationResource]; resource != "" {
		return Network{}, fmt.Errorf("%w: network %s takes a device of %s (its annotation %s): this agent gives no devices", ErrAnnotation, n.Definition, resource, annotationResource)
	}
	n.Config = json.RawMessage(definition.Spec.Config)
	if slices.Contains(r.Shared, s.Namespace) || slices.Contains(r.Allowed, AnyPlugin) {
		return n, nil
	}
	if n.Config, err = r.Allowed.confine(n.Config, s.Namespace+"_"+s.Name); err != nil {
		return Network{}, fmt.Errorf("%w: %s: %w; have an administrator make it in a namespace of the agent's option --network-namespaces, or allow it with --network-plugins", ErrNotAllowed, n.Definition, err)
	}
	return n, nil
}

// annotationResource is on a NetworkAttachmentDefinition and names the extended resource
// whose device a plugin gets.
const annotationResource = "k8s.v1.cni.cncf.io/resourceName"

// interfaceNames returns the interface of each network: the requested name, or net1, net2, ….
func interfaceNames(selections []*nadv1.NetworkSelectionElement, first string) ([]string, error) {
	taken := map[string]bool{first: true, "lo": true}
	names := make([]string, len(selections))
	for i, s := range selections {
		if s.InterfaceRequest == "" {
			continue
		}
		if err := utils.ValidateInterfaceName(s.InterfaceRequest); err != nil {
			return nil, fmt.Errorf("%w: network %s/%s: interface %q: %w", ErrAnnotation, s.Namespace, s.Name, s.InterfaceRequest, err)
		}
		if taken[s.InterfaceRequest] {
			return nil, fmt.Errorf("%w: network %s/%s: the pod has an interface %s already", ErrAnnotation, s.Namespace, s.Name, s.InterfaceRequest)
		}
		taken[s.InterfaceRequest] = true
		names[i] = s.InterfaceRequest
	}
	for i := range names {
		// The number follows from the position, so that a name does not change with other names.
		for number := i + 1; names[i] == ""; number += len(names) {
			if name := fmt.Sprintf("net%d", number); !taken[name] {
				taken[name], names[i] = true, name
			}
		}
	}
	return names, nil
}

// capabilities returns the runtimeConfig by CNI's conventions.
func capabilities(s *nadv1.NetworkSelectionElement) (map[string]json.RawMessage, error) {
	values := map[string]any{}
	if s.IPAMClaimReference != "" {
		return nil, errors.New("ipam-claim-reference is not served; remove it")
	}
	if len(s.IPRequest) > 0 {
		for _, text := range s.IPRequest {
			if !isAddress(text) {
				return nil, fmt.Errorf("ips has %q, which is neither an address nor an address with a prefix length", text)
			}
		}
		values["ips"] = s.IPRequest
	}
	if s.MacRequest != "" {
		if _, err := net.ParseMAC(s.MacRequest); err != nil {
			return nil, fmt.Errorf("mac: %w", err)
		}
		values["mac"] = s.MacRequest
	}
	if s.InfinibandGUIDRequest != "" {
		values["infinibandGUID"] = s.InfinibandGUIDRequest
	}
	if len(s.PortMappingsRequest) > 0 {
		values["portMappings"] = s.PortMappingsRequest
	}
	if s.BandwidthRequest != nil {
		values["bandwidth"] = s.BandwidthRequest
	}
	return encode(values)
}

func isAddress(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(text)
	return err == nil
}

func arguments(s *nadv1.NetworkSelectionElement) (map[string]json.RawMessage, error) {
	if s.CNIArgs == nil {
		return nil, nil
	}
	return encode(*s.CNIArgs)
}

func encode(values map[string]any) (map[string]json.RawMessage, error) {
	if len(values) == 0 {
		return nil, nil
	}
	out := make(map[string]json.RawMessage, len(values))
	for key, value := range values {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
		out[key] = raw
	}
	return out, nil
}
