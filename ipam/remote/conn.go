// SPDX-License-Identifier: Apache-2.0

// Package remote connects to a gRPC service that is no part of Berth, as the external assigner: options and flags of the
// connection, TLS with files that may be replaced, and requests with a time limit.
package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health" // the client side of health checks
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics"
)

// Service is a kind of service.
type Service struct {
	// Name is its name in errors, Noun the short one, by which flags begin.
	Name, Noun string
	// GRPC is its name in gRPC, also of its health.
	GRPC string
	// Timeout is the default time limit of one request.
	Timeout time.Duration
}

// serviceConfig distributes calls over all addresses of the service that report that they are serving.
const serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": %q}}`

// Conn is a connection to a service. It is safe for concurrent use.
type Conn struct {
	*grpc.ClientConn

	// Requests observes how long requests took, by the labels of Once and the gRPC code; nil: nothing does.
	Requests *metrics.HistogramVec

	limit time.Duration
}

// Dial returns a connection by the options, which are to have an address. It connects on the first call, and then stays
// connected or reconnects until Close. It fails where the options are wrong, or name a file that cannot be read.
func Dial(service Service, options Options) (*Conn, error) {
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", service.Name, err)
	}
	if !options.Enabled() {
		return nil, errors.New(service.Name + ": no address")
	}
	credentials, err := transport(&options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service.Name, err)
	}
	conn, err := grpc.NewClient(options.Address,
		grpc.WithTransportCredentials(credentials),
		grpc.WithUserAgent("berth"),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(serviceConfig, service.GRPC)),
		grpc.WithDisableServiceConfig(), // of DNS
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			// By default a gRPC server treats more than one ping in five minutes as abuse.
			Time: 6 * time.Minute,
			// Also how long a request may stay unacknowledged by the peer's kernel
			// before the connection counts as lost.
			Timeout: 10 * time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service.Name, err)
	}
	return &Conn{ClientConn: conn, limit: service.TimeLimit(&options)}, nil
}

// Once sends a request with the time limit of one, and returns its status. It blocks.
func (c *Conn) Once(ctx context.Context, send func(context.Context) error, labels ...string) *status.Status {
	start := time.Now()
	answer := c.once(ctx, send)
	if c.Requests != nil {
		c.Requests.WithLabelValues(append(labels, answer.Code().String())...).Observe(time.Since(start).Seconds())
	}
	return answer
}

func (c *Conn) once(ctx context.Context, send func(context.Context) error) *status.Status {
	attempt, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	start := time.Now()
	answer := status.Convert(send(attempt))
	if answer.Code() == codes.DeadlineExceeded && Over(attempt) {
		deadline, _ := attempt.Deadline() // the caller's, if that is sooner
		words := fmt.Sprintf("no answer within %v", deadline.Sub(start).Round(10*time.Millisecond))
		if answer.Message() != context.DeadlineExceeded.Error() {
			words += ": " + answer.Message() // gRPC names the thing that it waited for
		}
		return status.New(codes.DeadlineExceeded, words)
	}
	return answer
}

// Over reports whether the deadline has passed. The server may notice that a little
// earlier than the client.
func Over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < 50*time.Millisecond
}

// maxWords limits the bytes of a service's message that are shown: an event holds 1024
// bytes, and has other text, too.
const maxWords = 512

// OneLine makes a service's message fit for events and conditions.
func OneLine(message string) string {
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if message == "" {
		return "no reason given"
	}
	if len(message) > maxWords {
		return strings.ToValidUTF8(message[:maxWords], "") + "…"
	}
	return message
}
