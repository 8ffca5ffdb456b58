// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// Whoever reaches a node reaches its agent: that tells everybody whether it is
// well, and its metrics to those only who may get them.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	const address = "10.0.60.11"
	n := network.newNode(t, "monitoring-a", address, "--bind-address="+address, "--secure-port=10265")
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path, token string
		code        int
		text        string
	}{
		{"/healthz", "", http.StatusOK, "ok"},
		{"/metrics", "", http.StatusUnauthorized, "bearer token"},
		{"/metrics", "nobody's", http.StatusUnauthorized, "bearer token"},
		{"/metrics", config.BearerToken, http.StatusOK, "berth_agent_withdrawals_total"},
	} {
		code, text, err := ask(network.client, address+":10265", tc.path, tc.token)
		if err != nil || code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s: %d %.300s %v, want %d %s", tc.path, code, text, err, tc.code, tc.text)
		}
	}
	netnstest.Eventually(t, func() error {
		code, text, err := ask(network.client, address+":10265", "/readyz", "")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, text)
		}
		return err
	})
	// On no other address of the node.
	if err := n.Try(func() error {
		connection, err := net.Dial("tcp", "127.0.0.1:10265")
		if err == nil {
			connection.Close()
		}
		return err
	}); err == nil {
		t.Error("serves on an address that it was not told")
	}
}

// ask sends an HTTPS request from a host.
func ask(from *netnstest.Host, address, path, token string) (code int, text string, err error) {
	return askAs(from, address, path, "Authorization", token)
}

// askAs sends the token in a header.
func askAs(from *netnstest.Host, address, path, header, token string) (code int, text string, err error) {
	return callAs(from, http.MethodGet, address, path, header, token)
}

func callAs(from *netnstest.Host, method, address, path, header, token string) (code int, text string, err error) {
	var connection net.Conn
	// A socket belongs to the namespace that it was made in.
	if err := from.Try(func() error { connection, err = net.Dial("tcp", address); return err }); err != nil {
		return 0, "", err
	}
	defer connection.Close()
	request, err := http.NewRequest(method, "https://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	if token != "" {
		request.Header.Set(header, "Bearer "+token)
	}
	encrypted := tls.Client(connection, &tls.Config{InsecureSkipVerify: true})
	if err := request.Write(encrypted); err != nil {
		return 0, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(encrypted), request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
