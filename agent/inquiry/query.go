// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
)

// lists returns the addresses of a question by their names in the query, with the limit of each:
// every host and address costs packets.
func (q *WitnessQuestion) lists() []addressList {
	return []addressList{{"host", MostHosts, &q.Hosts}, {"control", MostHosts, &q.Controls}, {"gateway", MostHosts, &q.Gateways}, {"address", MostAddresses, &q.Addresses}}
}

type addressList struct {
	name string
	most int
	of   *[]netip.Addr
}

func (q *WitnessQuestion) query() url.Values {
	query := url.Values{"node": {q.Node}, "vlan": {strconv.Itoa(q.VLAN)}}
	for _, list := range q.lists() {
		for _, addr := range *list.of {
			query.Add(list.name, addr.String())
		}
	}
	return query
}

func readWitnessQuestion(query url.Values) (q WitnessQuestion, err error) {
	q.Node = query.Get("node")
	for _, list := range q.lists() {
		if n := len(query[list.name]); n > list.most {
			err = errors.Join(err, fmt.Errorf("%s is given %d times: give %d at most", list.name, n, list.most))
			continue
		}
		addrs, bad := readAddresses(query, list.name)
		*list.of, err = addrs, errors.Join(err, bad)
	}
	vlan, bad := strconv.ParseUint(cmp.Or(query.Get("vlan"), "0"), 10, 12)
	if bad != nil {
		err = errors.Join(err, fmt.Errorf("vlan=%q is no VLAN", query.Get("vlan")))
	}
	q.VLAN = int(vlan)
	if q.Node == "" && len(q.Addresses) == 0 {
		err = errors.Join(err, errors.New("neither node nor address is given: name the node that may be lost, or addresses"))
	}
	return q, err
}

func (q PolicyTrace) query() url.Values {
	return url.Values{"from": {q.From}, "to": {q.To}, "port": {strconv.Itoa(int(q.Port))}, "protocol": {q.Protocol}}
}

func readPolicyTrace(query url.Values) (PolicyTrace, error) {
	port, err := strconv.ParseUint(query.Get("port"), 10, 16)
	if err != nil {
		err = fmt.Errorf("port=%q is no port", query.Get("port"))
	}
	return PolicyTrace{From: query.Get("from"), To: query.Get("to"), Port: uint16(port), Protocol: query.Get("protocol")}, err
}

// readAddresses returns the addresses under a name in a query.
func readAddresses(query url.Values, name string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, text := range query[name] {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s=%q is no address", name, text)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// readAddress returns the one address of a query.
func readAddress(query url.Values) (netip.Addr, error) {
	addrs, err := readAddresses(query, "address")
	if len(addrs) == 1 {
		return addrs[0], nil
	}
	return netip.Addr{}, cmp.Or(err, fmt.Errorf("%d addresses: name one", len(addrs)))
}

// flag reads the boolean of a name in a query.
func flag(name string) func(url.Values) (bool, error) {
	return func(query url.Values) (bool, error) {
		is, err := strconv.ParseBool(cmp.Or(query.Get(name), "false"))
		if err != nil {
			err = fmt.Errorf("%s=%q is neither true nor false", name, query.Get(name))
		}
		return is, err
	}
}
