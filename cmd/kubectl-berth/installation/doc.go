// SPDX-License-Identifier: Apache-2.0

// Package installation has the commands about Berth's own programs: how they are, and their versions.
package installation
