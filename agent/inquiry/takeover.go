// SPDX-License-Identifier: Apache-2.0

package inquiry

// PathTakeOver is the agent's resource for a person's word: POST with an address for which a pod of the node waits says that no other
// node answers for it, whatever is heard. The agent then answers for it within a second. The answer is empty; 422 where
// no pod of the node waits for the address, with the reason.
const PathTakeOver = "/v1/take-over"
