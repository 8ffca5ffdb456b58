// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client sends a query to a resource of an agent and returns the response. An error of the agent
// has the agent's text.
type Client func(ctx context.Context, method, path string, query url.Values) ([]byte, error)

var _ Inquirer = Client(nil)

// Inspect implements Inquirer.
func (c Client) Inspect(ctx context.Context, pod string, check bool) (*Inspection, error) {
	query := url.Values{"check": {strconv.FormatBool(check)}}
	if pod != "" {
		query.Set("pod", pod)
	}
	return get[Inspection](ctx, c, PathInspect, query)
}

// Carried implements Inquirer.
func (c Client) Carried(ctx context.Context, hears bool) (*Carried, error) {
	return get[Carried](ctx, c, PathCarried, url.Values{"hears": {strconv.FormatBool(hears)}})
}

// Witness implements Inquirer.
func (c Client) Witness(ctx context.Context, q WitnessQuestion) (*Testimony, error) {
	return get[Testimony](ctx, c, PathWitness, q.query())
}

// TracePolicy implements Inquirer.
func (c Client) TracePolicy(ctx context.Context, q PolicyTrace) (string, error) {
	text, err := get[string](ctx, c, PathPolicyTrace, q.query())
	if err != nil {
		return "", err
	}
	return *text, nil
}

// PreviewPolicies implements Inquirer.
func (c Client) PreviewPolicies(ctx context.Context) (*PolicyPreview, error) {
	return get[PolicyPreview](ctx, c, PathPolicyPreview, nil)
}

// TakeOver implements Inquirer.
func (c Client) TakeOver(ctx context.Context, addr netip.Addr) error {
	_, err := c(ctx, http.MethodPost, PathTakeOver, url.Values{"address": {addr.String()}})
	return err
}

func get[A any](ctx context.Context, c Client, path string, query url.Values) (*A, error) {
	raw, err := c(ctx, http.MethodGet, path, query)
	if err != nil {
		return nil, err
	}
	var answer A
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return &answer, nil
}

// OnSocket asks the agent that answers on a unix socket.
func OnSocket(socket string) Client {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	return func(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path+"?"+query.Encode(), nil)
		if err != nil {
			return nil, fmt.Errorf("make the request: %w", err)
		}
		answer, err := client.Do(request)
		if err != nil {
			return nil, fmt.Errorf("the agent does not answer on %s: %w; does it run on this node, and are you root?", socket, errors.Unwrap(err))
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, fmt.Errorf("read the agent's answer: %w", err)
		}
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the agent answers %s: %s", answer.Status, strings.TrimSpace(string(body)))
		}
		return body, nil
	}
}
