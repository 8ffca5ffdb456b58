// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/csv"
	"io"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// WriteCSV writes addresses as export prints them: each calls its function with one after the other. It keeps none in
// memory.
func WriteCSV(to io.Writer, each func(func(*v1alpha1.FloatingIP) error) error) error {
	writer := csv.NewWriter(to)
	cells := make([]string, len(columns))
	for i, column := range columns {
		cells[i] = column.name
	}
	if err := writer.Write(cells); err != nil {
		return err
	}
	err := each(func(ip *v1alpha1.FloatingIP) error {
		row := rowOf(ip)
		for i, column := range columns {
			cells[i] = column.of(&row)
		}
		return writer.Write(cells)
	})
	if err != nil {
		return err
	}
	writer.Flush()
	return writer.Error()
}
