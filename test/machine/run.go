// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/test/machine/guest"
)

// Suite is the tests of one package.
type Suite struct {
	// Package is the path of the package from Module, such as ./cni/veth/wire.
	Package string
	// Module is the folder of the module.
	Module string
	// Run selects tests as go test -run does; empty means all.
	Run string
	// Env is added to the tests' environment.
	Env []string
	// Tags are build tags.
	Tags string
}

// Run compiles the suite without cgo, boots a machine, and runs the tests in it. It returns
// what they reported, and an error where the machine or the suite did not run to its end:
// then the machine has ended too. The error's text has the end of the console. The context
// limits the time. Output goes to log as it comes.
func Run(ctx context.Context, log io.Writer, s Suite) ([]Result, error) {
	r, err := prepare(ctx, log)
	if err != nil {
		return nil, err
	}
	// QEMU runs inside the root and finds the files by their paths there.
	if err := os.MkdirAll(filepath.Join(r.dir, "tmp"), 0o755); err != nil {
		return nil, fmt.Errorf("make the machine's folder: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Join(r.dir, "tmp"), "run-")
	if err != nil {
		return nil, fmt.Errorf("make the machine's folder: %w", err)
	}
	defer os.RemoveAll(work)
	if err := r.pack(ctx, log, work, s); err != nil {
		return nil, err
	}
	return r.boot(ctx, log, path.Join("/tmp", filepath.Base(work), initrd))
}

const initrd = "initrd"

// pack compiles the suite and writes the initramfs with it.
func (r *root) pack(ctx context.Context, log io.Writer, work string, s Suite) error {
	t, err := r.base()
	if err != nil {
		return err
	}
	init := filepath.Join(work, "init")
	if err := goBuild(ctx, "", "build", "-trimpath", "-ldflags=-s -w", "-o", init, "github.com/berth-dev/berth/test/machine/init"); err != nil {
		return err
	}
	t.file("init", init)
	fmt.Fprintf(log, "compiling the tests of %s\n", s.Package)
	binary := filepath.Join(work, "suite.test")
	if err := goBuild(ctx, s.Module, "test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-tags", s.Tags, "-o", binary, s.Package); err != nil {
		return err
	}
	const folder = "suite"
	t.file(path.Join(folder, "suite.test"), binary)
	data := filepath.Join(s.Module, s.Package, "testdata")
	if _, err := os.Stat(data); err == nil {
		if err := t.folder(path.Join(folder, "testdata"), data); err != nil {
			return fmt.Errorf("pack %s: %w", data, err)
		}
	}
	// The machine's end ends a suite, not a timeout of its own. Tests in parallel wait more than they
	// compute.
	args := []string{"-test.v=test2json", "-test.timeout=0", "-test.parallel=4", "-test.run=" + s.Run}
	text, err := json.Marshal(guest.Job{Program: "/" + folder + "/suite.test", Args: args, Dir: "/" + folder, Env: s.Env})
	if err != nil {
		return fmt.Errorf("encode what to run: %w", err)
	}
	t[strings.TrimPrefix(guest.JobPath, "/")] = entry{data: text}
	return t.save(filepath.Join(work, initrd))
}

func (t tree) save(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(t.write(w), w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	return nil
}

func goBuild(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boot runs the machine until it powers off or the context ends.
func (r *root) boot(ctx context.Context, log io.Writer, initrd string) ([]Result, error) {
	args := []string{
		"-initrd", initrd,
		"-add-fd", "fd=3,set=1", "-chardev", "file,id=report,append=on,path=/dev/fdset/1", "-serial", "chardev:report",
	}
	qemu := r.qemu(ctx, r.accelerator(ctx, log), "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on", append(args, cards()...)...)
	reports, report, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the machine's reports: %w", err)
	}
	defer reports.Close()
	console := &tail{limit: 60}
	qemu.ExtraFiles = []*os.File{report}
	qemu.Stdout, qemu.Stderr = console, console
	err = qemu.Start()
	_ = report.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: start QEMU: %w", ErrUnavailable, err)
	}
	results, unfinished := collect(reports, log)
	err = errors.Join(unfinished, qemu.Wait())
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return results, fmt.Errorf("the machine did not run to its end: %w; the console's last lines:\n%s", err, console)
	}
	return results, nil
}

// qemu returns a command that boots the kernel, whose console is the command's output.
func (r *root) qemu(ctx context.Context, options []string, kernel string, args ...string) *exec.Cmd {
	return r.command(ctx, "qemu-system-x86_64", slices.Concat([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-smp", "2", "-m", "1024", "-serial", "stdio",
		"-kernel", "/boot/vmlinuz-" + r.kernel, "-append", kernel,
	}, options, args)...)
}

// cards returns three network cards of the type Intel 82576, which have SR-IOV, on one hub.
func cards() []string {
	var args []string
	for i := range guest.Cards {
		args = append(args,
			"-netdev", fmt.Sprintf("hubport,id=port%d,hubid=0", i),
			"-device", fmt.Sprintf("pcie-root-port,id=root%d,chassis=%d", i, i+1),
			"-device", fmt.Sprintf("igb,bus=root%d,netdev=port%d,mac=%s", i, i, guest.CardMAC(i)),
		)
	}
	return args
}

// collect reads reports until the machine ends.
func collect(reports io.Reader, log io.Writer) ([]Result, error) {
	var errs []error
	p := parser{output: map[string]*strings.Builder{}, outcome: map[string]Outcome{}}
	lines := bufio.NewReader(reports)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return p.results("the machine ended"), errors.Join(append(errs, errors.New("it ended before its tests"))...)
		}
		var event guest.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			errs = append(errs, fmt.Errorf("decode report %q: %w", line, err))
			continue
		}
		switch event.Kind {
		case guest.Output:
			fmt.Fprintln(log, strings.TrimPrefix(event.Line, marker))
			p.line(event.Line)
		case guest.Exit:
			return p.results(event.Line), errors.Join(errs...)
		}
	}
}

// tail keeps the last lines that are written to it.
type tail struct {
	limit int
	lines []string
}

func (t *tail) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		if n := len(t.lines); n > 0 && !strings.HasSuffix(t.lines[n-1], "\n") {
			t.lines[n-1] += line
		} else {
			t.lines = append(t.lines, line)
		}
	}
	if n := len(t.lines); n > t.limit {
		t.lines = t.lines[n-t.limit:]
	}
	return len(b), nil
}

func (t *tail) String() string { return strings.ReplaceAll(strings.Join(t.lines, ""), "\r", "") }
