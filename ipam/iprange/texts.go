// SPDX-License-Identifier: Apache-2.0

package iprange

import "fmt"

// Texts returns addresses or ranges as people read them.
func Texts[S ~[]T, T fmt.Stringer](all S) []string {
	texts := make([]string, len(all))
	for i, each := range all {
		texts[i] = each.String()
	}
	return texts
}
