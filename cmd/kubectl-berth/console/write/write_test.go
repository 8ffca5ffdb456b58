// SPDX-License-Identifier: Apache-2.0

package write

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

// What a command says is a table, sentences and commands, and findings are no error.
func TestTold(t *testing.T) {
	table := answer.NewTable("Node", "Why")
	table.Add("node1", "")
	said := &answer.Answer{Table: table, Text: func(out io.Writer, paint answer.Paint) {
		fmt.Fprintln(out)
		answer.PrintProblems(out, paint, []answer.Problem{{Text: "Node node1 is suspect", Command: "kubectl describe node node1"}}, []string{"whether it is off"}, "")
	}}
	got, err := told(said, answer.FindingsError(""))
	want := &access.Told{Columns: []string{"Node", "Why"}, Rows: [][]string{{"node1", "-"}}, Lines: []access.Line{
		{Text: "Node node1 is suspect"}, {Text: "kubectl describe node node1", IsCommand: true}, {Text: "It is not known whether it is off"},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := told(nil, errors.New("forbidden")); err == nil || err.Error() != "forbidden" {
		t.Errorf("without an answer: %v", err)
	}
}

// A user's questions go to the API server with the user's token, and those of a console that only
// reads write nothing.
func TestAsBearer(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	to := To{Config: &rest.Config{Host: server.URL, BearerToken: "of the console", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Namespace: "berth-system"}
	as, err := to.AsBearer("of ann")
	if err != nil {
		t.Fatal(err)
	}
	if as.FloatingIPs != nil || as.IPPools != nil || as.IPClaims != nil {
		t.Error("a console that only reads can write")
	}
	for name, question := range map[string]access.Question{"speakers": as.BGP, "berth-failover": as.Failover} {
		if said, err := question(t.Context()); err != nil || len(said.Rows) > 0 || len(said.Lines) == 0 {
			t.Errorf("%s, which are not there: %+v, %v", name, said, err)
		}
	}
	if said, err := as.Traffic(standing.Address{Address: "10.0.70.8", Pod: &standing.Pod{Namespace: "shop", Name: "web-0"}, Node: "node1"})(t.Context()); err != nil || len(said.Rows) != 1 {
		t.Errorf("of an agent that is not there: %+v, %v", said, err)
	}
	counts := map[string]int{}
	for _, one := range asked {
		counts[one]++
	}
	want := map[string]int{"GET /api/v1/namespaces/berth-system/pods Bearer of ann": 3, "GET /api/v1/pods Bearer of ann": 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	to.Writes = true
	if as, err = to.As(); err != nil || as.FloatingIPs == nil || as.IPPools == nil || as.IPClaims == nil {
		t.Errorf("a console that writes cannot: %+v, %v", as, err)
	}
}
