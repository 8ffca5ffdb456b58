// SPDX-License-Identifier: Apache-2.0

// Package access says which part of the cluster a request to the console may see, and with whose
// rights it writes. A gate in front of all pages and of the API finds it out; they ask [Of] and
// [WriterOf], and nobody else.
package access

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

type (
	scopeKey  struct{}
	writerKey struct{}
)

// With returns a context of a request that may see a scope.
func With(ctx context.Context, scope register.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

// Of returns the scope of a request. It sees nothing if no gate has let the request in.
func Of(ctx context.Context) register.Scope {
	scope, _ := ctx.Value(scopeKey{}).(register.Scope)
	return scope
}

// Writer writes to the API server as the user of a request, who has the rights there or has them
// not. What it writes with is nil in a console that only reads; asking changes nothing.
type Writer struct {
	// BGP and Failover ask the speakers and berth-failover, as kubectl berth bgp and failover do.
	BGP, Failover Question
	// Traffic asks the agent of an address's node, as kubectl berth who --traffic does.
	Traffic     func(of standing.Address) Question
	FloatingIPs freeing.FloatingIPs
	IPPools     Objects
	// IPClaims writes those of a namespace.
	IPClaims func(namespace string) Objects
}

// Question asks programs of Berth's at their ports. It blocks.
type Question func(ctx context.Context) (*Told, error)

// Told is what they said: a table, and lines for people.
type Told struct {
	Columns []string
	Rows    [][]string
	Lines   []Line
}

// Line is a sentence, or a command to go on with.
type Line struct {
	Text      string
	IsCommand bool
}

// Objects writes objects of a kind as they are given, whose fields the API server checks.
type Objects interface {
	Create(ctx context.Context, object *unstructured.Unstructured, options metav1.CreateOptions, subresources ...string) (*unstructured.Unstructured, error)
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions, subresources ...string) error
}

// WithWriter returns a context of a request that may write.
func WithWriter(ctx context.Context, writer *Writer) context.Context {
	return context.WithValue(ctx, writerKey{}, writer)
}

// WriterOf returns the writer of a request; nil if no gate has given it one.
func WriterOf(ctx context.Context) *Writer {
	writer, _ := ctx.Value(writerKey{}).(*Writer)
	return writer
}
