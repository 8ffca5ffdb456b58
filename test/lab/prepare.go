// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-dev/berth/test/tool"
)

// Prepare makes the machine able to run labs: it installs the Debian packages
// that are missing and builds the programs that are missing or out of date.
// On other systems than Debian it says what is missing. It does nothing,
// quickly, when all is there.
func Prepare(ctx context.Context, w io.Writer) error { return prepare(ctx, newProgress(w)) }

func prepare(ctx context.Context, progress *progress) error {
	if os.Geteuid() != 0 {
		return errors.New("prepare the lab: must be root, to make namespaces and mounts")
	}
	if err := tool.Install(ctx, progress.say); err != nil {
		return fmt.Errorf("prepare the lab: %w", err)
	}
	return build(ctx, progress)
}
