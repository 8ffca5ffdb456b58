// SPDX-License-Identifier: Apache-2.0

// Package access says which part of the cluster a request to the console may see. A gate in front of all pages and of the
// API finds it out; they ask [Of] and nobody else.
package access

import (
	"context"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type key struct{}

// With returns a context of a request that may see a scope.
func With(ctx context.Context, scope register.Scope) context.Context {
	return context.WithValue(ctx, key{}, scope)
}

// Of returns the scope of a request. It sees nothing if no gate has let the request in.
func Of(ctx context.Context) register.Scope {
	scope, _ := ctx.Value(key{}).(register.Scope)
	return scope
}
