// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTail(t *testing.T) {
	const (
		bound = `I1121 14:42:42.238234   18883 bind.go:93] "Bound a pod with floating IPs" logger="Bind.FloatingIP"`
		fails = `E1121 14:42:42.238235   18883 reflector.go:205] "Failed to watch" err="no"`
		ends  = "panic: reflector.go:1] is in the text only"
	)
	log := bound + `
I1121 14:42:41.190752   18883 reflector.go:1080] "Exiting watch because received the bookmark that marks the end of initial events stream" totalItems=1
I1121 14:42:41.191119   18883 reflector.go:507] "Caches populated" type="*v1.Pod"
` + fails + `
I1121 14:42:41.191100       1 claims.go:309] "Waiting" for="the caches of claims"
I1121 14:42:41.191746       1 claims.go:309] "Done waiting" for="the caches of claims"
I1121 14:43:42.410789   18883 reflector.go:1093] "Watch close" type="*v1.CSIStorageCapacity" totalItems=0
` + ends + `
`
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	for lines, want := range map[int]string{9: bound + "\n" + fails + "\n" + ends, 2: fails + "\n" + ends} {
		if got := string(Tail(path, lines)); got != want {
			t.Errorf("%d lines:\n%s\nwant\n%s", lines, got, want)
		}
	}
}
