// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/berth-dev/berth/cni/api"
)

// migrations convert a file to the next schema, each in the transaction of Open: a file is
// converted whole or not at all.
var migrations = map[string]func(tx *bbolt.Tx) (next string, err error){"1": fromSchema1}

// Schema 1 had a record for each interface and knew one driver.
//
//	attachments
//	  <container ID> NUL <interface name>    attachment1 as JSON
var bucketAttachments1 = []byte("attachments")

type attachment1 struct {
	ContainerID  string                     `json:"containerID"`
	IfName       string                     `json:"ifName"`
	NetNS        string                     `json:"netns"`
	Pod          api.Pod                    `json:"pod"`
	Addresses    []api.Address              `json:"addresses"`
	Uplink       string                     `json:"uplink"`
	MTU          int                        `json:"mtu"`
	MAC          string                     `json:"mac"`
	Network      json.RawMessage            `json:"network"`
	Args         string                     `json:"args"`
	Capabilities map[string]json.RawMessage `json:"capabilities"`
	Phase        Phase                      `json:"phase"`
	Result       json.RawMessage            `json:"result"`
}

func (a *attachment1) container() *Container {
	c := &Container{
		ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Pod: a.Pod, Args: a.Args, Capabilities: a.Capabilities,
		Attachments: []Attachment{{
			IfName: a.IfName, Addresses: a.Addresses, Uplink: a.Uplink, MTU: a.MTU, MAC: a.MAC, Network: a.Network, Result: a.Result,
		}},
		Phase: a.Phase, Result: a.Result,
	}
	if len(a.Addresses) > 0 {
		c.Attachments[0].Driver = api.DriverVeth
	}
	return c
}

func fromSchema1(tx *bbolt.Tx) (string, error) {
	old := tx.Bucket(bucketAttachments1)
	if old == nil {
		return "", fmt.Errorf("bucket %s is missing", bucketAttachments1)
	}
	containers, err := tx.CreateBucket(bucketContainers)
	if err != nil {
		return "", fmt.Errorf("create bucket %s: %w", bucketContainers, err)
	}
	err = old.ForEach(func(key, value []byte) error {
		var a attachment1
		if err := json.Unmarshal(value, &a); err != nil {
			return fmt.Errorf("decode record %q of schema 1: %w: %w", key, ErrDamaged, err)
		}
		converted, err := json.Marshal(a.container())
		if err != nil {
			return fmt.Errorf("encode record %q: %w", key, err)
		}
		if _, err := decode(key, converted); err != nil {
			return err
		}
		return containers.Put(key, converted)
	})
	return "2", errors.Join(err, tx.DeleteBucket(bucketAttachments1))
}
