// SPDX-License-Identifier: Apache-2.0

// Package remote connects to a gRPC service that is not part of Berth, such as the external
// assigner. It has the options and flags of the connection, TLS with files that may be replaced,
// and requests with a time limit.
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
	// Name is its name in errors. Noun is its short name: flags begin with it.
	Name, Noun string
	// GRPC is its name in gRPC, also for health checks.
	GRPC string
	// Timeout is the default time limit of one request.
	Timeout time.Duration
}

// NewMetrics creates the metrics of Conns and registers them.
func NewMetrics(register func(...metrics.Registerable)) *metrics.HistogramVec {
	requests := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "berth_remote", Name: "request_duration_seconds",
		Help:    "Duration of requests to the external assigner (service assigner; method attach or detach) and the fencer (service fencer; method fence), each repetition counted separately, by gRPC code.",
		Buckets: metrics.ExponentialBuckets(0.005, 2, 15),
	}, []string{"service", "method", "code"})
	register(requests)
	return requests
}

// Error is the error of a call: the service answered with an error, or could not be reached. Its
// text is shown to users in events.
type Error struct {
	// Service is the name of the service. Call describes the request.
	Service, Call string
	// Code of the gRPC status.
	Code codes.Code
	// Message comes from the service, or from gRPC about the connection, as one line of bounded
	// length.
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s (%s)", e.Service, e.Call, e.Message, e.Code)
}

// Error returns the *[Error] of an answer to a call; nil for OK.
func (s Service) Error(call string, answer *status.Status) error {
	if answer.Code() == codes.OK {
		return nil
	}
	return &Error{Service: s.Name, Call: call, Code: answer.Code(), Message: oneLine(answer.Message())}
}

// serviceConfig distributes calls over all addresses of the service that report that they are
// serving.
const serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": %q}}`

// Conn is a connection to a service. It is safe for concurrent use.
type Conn struct {
	*grpc.ClientConn

	// requests measures the duration of requests; it may be nil.
	requests *metrics.HistogramVec
	service  string
	limit    time.Duration
}

// Dial returns a connection by the options, which must have an address. It connects on the first
// call, and then stays connected or reconnects until Close. It fails if the options are invalid, or
// name a file that cannot be read. requests, from NewMetrics, may be nil.
func (s Service) Dial(options Options, requests *metrics.HistogramVec) (*Conn, error) {
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	if !options.Enabled() {
		return nil, errors.New(s.Name + ": no address")
	}
	credentials, err := transport(&options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	conn, err := grpc.NewClient(options.Address,
		grpc.WithTransportCredentials(credentials),
		grpc.WithUserAgent("berth"),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(serviceConfig, s.GRPC)),
		grpc.WithDisableServiceConfig(), // from DNS
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
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return &Conn{ClientConn: conn, requests: requests, service: s.Noun, limit: s.TimeLimit(&options)}, nil
}

// Once sends a request, with the time limit of one request, and returns its status. It blocks.
func (c *Conn) Once(ctx context.Context, method string, send func(context.Context) error) *status.Status {
	attempt, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	start := time.Now()
	answer := status.Convert(send(attempt))
	if answer.Code() == codes.DeadlineExceeded && Over(attempt) {
		deadline, _ := attempt.Deadline() // the caller's deadline, if it is earlier
		words := fmt.Sprintf("no answer within %v", deadline.Sub(start).Round(10*time.Millisecond))
		if answer.Message() != context.DeadlineExceeded.Error() {
			words += ": " + answer.Message() // gRPC says what it waited for
		}
		answer = status.New(codes.DeadlineExceeded, words)
	}
	if c.requests != nil {
		c.requests.WithLabelValues(c.service, method, answer.Code().String()).Observe(time.Since(start).Seconds())
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

// oneLine makes a service's message fit for events and conditions.
func oneLine(message string) string {
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
