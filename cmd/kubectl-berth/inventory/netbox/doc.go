// SPDX-License-Identifier: Apache-2.0

// Package netbox reads lists of addresses as NetBox exports them, and writes the ones that it imports. It does no I/O.
//
// # What NetBox imports
//
// Its bulk import reads CSV with a header, or a JSON list, and takes all of a file or nothing. A row with the id of an address
// updates that, a row without one creates an address. NetBox compares nothing else: where it wants addresses to be unique, in
// the global table unless ENFORCE_GLOBAL_UNIQUE is false and in a VRF with enforce_unique, it refuses a file that has an
// address of the table without its id. So the key is the id, and [Changes] finds it in NetBox's own list.
//
// # Whose an address is
//
// Each side must know which of its addresses came from the other, or they would keep each other's forever. NetBox has
// Berth's with a description that begins with "Berth: "; whoever edits that takes the address over. Berth has NetBox's
// reserved, with a reason of [Reason].
package netbox
