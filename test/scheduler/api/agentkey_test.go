// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// The controller fills in the key by which agents sign their messages, once, also where two try at the same time and
// however often the manifests are applied. Nothing prints it.
func TestAgentKey(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	get := func() *v1.Secret {
		t.Helper()
		secret, err := w.Kube.CoreV1().Secrets(w.System).Get(w.Ctx, "berth-agent-key", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	if data := get().Data; len(data) > 0 {
		t.Fatalf("the manifests have a key: %d entries", len(data))
	}
	filled := func() (key []byte) {
		t.Helper()
		w.Eventually("wait for the agents' key", func() error {
			if key = get().Data["current"]; len(key) != 32 {
				return fmt.Errorf("it has %d bytes", len(key))
			}
			return nil
		})
		return key
	}
	looked := func(c *simulation.Instance) {
		t.Helper()
		w.Eventually("wait for a look at the Secret", func() error {
			if len(c.Seen(func(c proxy.Call) bool { return isAgentKey(c.Path) })) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
	}

	// Both have seen that there is none.
	one, two := w.Controller(), w.Controller()
	var taps []*proxy.Tap
	for _, c := range []*simulation.Instance{one, two} {
		taps = append(taps, c.Tap(func(r *http.Request) bool { return r.Method == http.MethodPut && isAgentKey(r.URL.Path) }, proxy.BeforeRequest))
	}
	for _, tap := range taps {
		w.Await(tap)
	}
	taps[0].Pass()
	key := filled()
	taps[1].Pass()
	w.Eventually("wait for the answer to the second", func() error {
		if len(two.Seen(func(c proxy.Call) bool { return isAgentKey(c.Path) && c.Code == http.StatusConflict })) == 0 {
			return errors.New("it is not refused")
		}
		return nil
	})
	w.ApplyManifests()
	bin, err := lab.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		// The first one makes the annotation that the second one compares with.
		apply := exec.CommandContext(w.Ctx, filepath.Join(bin, "kubectl"), "--kubeconfig", w.ControlPlane.Kubeconfig(), "apply", "-f", "../../../manifests/agent/key.yaml")
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", apply, err, out)
		}
	}
	three := w.Controller()
	looked(three)
	three.Kill()
	if !bytes.Equal(get().Data["current"], key) {
		t.Error("there is another key after a restart and an apply")
	}

	// It is replaced as the documentation says.
	next := bytes.Repeat([]byte{7}, 32)
	patch := func(kind types.PatchType, text string) map[string][]byte {
		t.Helper()
		secret, err := w.Kube.CoreV1().Secrets(w.System).Patch(w.Ctx, "berth-agent-key", kind, []byte(text), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret.Data
	}
	patch(types.StrategicMergePatchType, fmt.Sprintf(`{"data":{"other":"%s"}}`, base64.StdEncoding.EncodeToString(next)))
	page, err := os.ReadFile("../../../docs/explanation/security.md")
	if err != nil {
		t.Fatal(err)
	}
	patches := regexp.MustCompile(`patch secret berth-agent-key --type=json -p '(.*)'`).FindAllStringSubmatch(string(page), -1)
	for i, want := range []map[string][]byte{{"current": next, "other": key}, {"current": next}} {
		if got := patch(types.JSONPatchType, patches[i][1]); !maps.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%s: there are %d keys, want %d others", patches[i][1], len(got), len(want))
		}
	}

	for _, c := range []*simulation.Instance{one, two, three} {
		log, err := os.ReadFile(c.Log())
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{string(key), hex.EncodeToString(key), base64.StdEncoding.EncodeToString(key)} {
			if strings.Contains(string(log), text) {
				t.Error("a log has the key")
			}
		}
	}
}

func isAgentKey(path string) bool { return strings.HasSuffix(path, "/secrets/berth-agent-key") }
