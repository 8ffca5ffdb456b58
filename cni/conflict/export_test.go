// SPDX-License-Identifier: Apache-2.0

package conflict

var (
	Nodes   = nodes
	Foreign = foreign
)
