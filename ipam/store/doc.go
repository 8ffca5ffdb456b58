// SPDX-License-Identifier: Apache-2.0

// Package store writes addresses in use as FloatingIP objects. Creating the object takes the
// address, because the API server admits one object of a name. Updates and deletes carry the UID
// and resource version on which they are based, so a decision on old data fails instead of taking
// an address away. The package makes no decisions.
package store
