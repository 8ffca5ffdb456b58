// SPDX-License-Identifier: Apache-2.0

// Command etcd is etcd's server, of the version whose client Kubernetes uses.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
