// SPDX-License-Identifier: Apache-2.0

// Client prints the name of each pool, how many addresses are held in it, and its capacity, as
// NAME:HELD/CAPACITY. It asks the console by a client that is generated from the console's OpenAPI
// document into this folder.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server, token string) error {
	client, err := NewClientWithResponses(server, WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+token)
		return nil
	}))
	if err != nil {
		return err
	}
	answer, err := client.ListPoolsWithResponse(ctx)
	if err != nil {
		return err
	}
	if answer.JSON200 == nil {
		return fmt.Errorf("%s: %s", answer.Status(), answer.ApplicationproblemJSONDefault.Detail)
	}
	for _, pool := range answer.JSON200.Pools {
		held, err := count(ctx, client, pool.Name)
		if err != nil {
			return err
		}
		if int64(held) != pool.Held {
			return fmt.Errorf("pool %s says that %d addresses are held, and %d are listed", pool.Name, pool.Held, held)
		}
		fmt.Printf("%s:%d/%d\n", pool.Name, pool.Held, pool.Capacity)
	}
	return nil
}

// count counts the addresses of a pool that are held, page by page.
func count(ctx context.Context, client *ClientWithResponses, pool string) (n int, err error) {
	state, limit := ListAddressesParamsStateHeld, 2
	parameters := &ListAddressesParams{Pool: &pool, State: &state, Limit: &limit}
	for {
		answer, err := client.ListAddressesWithResponse(ctx, parameters)
		if err != nil {
			return 0, err
		}
		if answer.JSON200 == nil {
			return 0, fmt.Errorf("%s: %s", answer.Status(), answer.ApplicationproblemJSONDefault.Detail)
		}
		n += len(answer.JSON200.Addresses)
		if parameters.After = answer.JSON200.Next; parameters.After == nil {
			return n, nil
		}
	}
}
