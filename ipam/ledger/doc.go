// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps many FloatingIPs and pods in little memory: one to three hundred bytes
// each, where the objects take a kilobyte and more. A [Ledger] has the methods of
// cache.Indexer that code needs which reads objects one by one. It keeps them as text, and
// makes an object anew each time it is asked for one.
//
// Of FloatingIPs it keeps everything but labels, annotations and managed fields; of pods what
// has to do with addresses.
package ledger
