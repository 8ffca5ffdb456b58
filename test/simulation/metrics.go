// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/berth-dev/berth/test/simulation/program"
)

// Fetch asks a program, with a token if there is one.
func (w *World) Fetch(url, token string) (code int, text string, err error) {
	request, err := http.NewRequestWithContext(w.Ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// The program's certificate is its own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// Scrapes waits until a program's metrics have some lines and not others.
func (w *World) Scrapes(url string, with, without []string) {
	w.T.Helper()
	w.Eventually("wait for the metrics", func() error {
		code, text, err := w.Fetch(url+"/metrics", w.Config.BearerToken)
		if err != nil {
			return err
		}
		if code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		for _, line := range with {
			if !strings.Contains(text, line+"\n") {
				return fmt.Errorf("they lack %q", line)
			}
		}
		for _, line := range without {
			if strings.Contains(text, line) {
				return fmt.Errorf("they have %q", line)
			}
		}
		return nil
	})
}

// FreeAddress returns one of this host that nobody listens on.
func (w *World) FreeAddress() string {
	w.T.Helper()
	address, err := program.FreeAddress()
	if err != nil {
		w.T.Fatal(err)
	}
	return address
}
