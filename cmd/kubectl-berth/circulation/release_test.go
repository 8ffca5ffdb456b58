// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
)

// A report that somebody edited is refused with a sentence.
func TestReport(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind":"CheckReport","findings":[{"code":"B102","address":"10.0.70.1"}]}`: `finding B102 of address "10.0.70.1" names no object`,
		`{"kind":"PoolList"}`: "is no report",
		`{"kind":"CheckReport","findings":[{"code":"B101","address":"10.0.70.1"}]}`:                                             "",
		`{"kind":"CheckReport","findings":[{"code":"B102","address":"10.0.70.1","objects":[{"kind":"FloatingIP","uid":"7"}]}]}`: "",
	} {
		o := &releasing{file: "-", Call: &command.Call{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(text)}}}
		if _, err := o.report(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
