// SPDX-License-Identifier: Apache-2.0

// Package report puts figures side by side: as JSON for programs, as tables for
// people.
package report
