// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree is the content of an initramfs by path without a leading slash.
type tree map[string]entry

// entry is a file with the content of source or of data, a link to target, or, with
// none of them, a folder.
type entry struct {
	source string
	data   []byte
	target string
}

// file adds a file of the host.
func (t tree) file(dest, source string) { t[dest] = entry{source: source} }

// folder adds all regular files and links below a folder of the host.
func (t tree) folder(dest, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		switch d.Type() {
		case 0:
			t.file(path.Join(dest, rel), p)
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			t[path.Join(dest, rel)] = entry{target: target}
		}
		return nil
	})
}

const (
	// The programs that iptables is in Debian, one for each variant.
	multi       = "xtables-nft-multi"
	multiLegacy = "xtables-legacy-multi"
	extensions  = "usr/lib/x86_64-linux-gnu/xtables"
)

// base returns the tree of a machine without tests: its programs and modules.
func (r *root) base() (tree, error) {
	t := tree{
		"sbin": {target: "usr/sbin"}, "bin": {target: "usr/bin"}, "lib": {target: "usr/lib"}, "lib64": {target: "usr/lib64"},
		"var/run": {target: "../run"}, "usr/sbin/modprobe": {target: "../bin/kmod"},
		"proc": {}, "sys": {}, "dev": {}, "run": {}, "tmp": {}, "etc": {},
	}
	for _, program := range []string{"ip", "bridge", "tc", "ping", "nft", "kmod", "ipset", multi, multiLegacy} {
		if err := r.addProgram(t, strings.TrimPrefix(r.program(program), "/")); err != nil {
			return nil, fmt.Errorf("pack %s: %w", program, err)
		}
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			t["usr/sbin/"+family+suffix] = entry{target: multi}
			t["usr/sbin/"+family+"-nft"+suffix] = entry{target: multi}
			t["usr/sbin/"+family+"-legacy"+suffix] = entry{target: multiLegacy}
		}
	}
	// ipset reads names of protocols.
	t.file("etc/protocols", filepath.Join(r.dir, "etc/protocols"))
	// Modules that iptables loads for each kind of match and target.
	if err := t.folder(extensions, filepath.Join(r.dir, extensions)); err != nil {
		return nil, fmt.Errorf("pack the extensions of iptables: %w", err)
	}
	// kmod loads it when it meets a compressed module.
	if err := r.addLibrary(t, "liblzma.so.5"); err != nil {
		return nil, err
	}
	if err := r.addModules(t); err != nil {
		return nil, fmt.Errorf("pack the modules of kernel %s: %w", r.kernel, err)
	}
	return t, nil
}

// addProgram adds an ELF file of the root and the libraries that it needs.
func (r *root) addProgram(t tree, file string) error {
	if _, ok := t[file]; ok {
		return nil
	}
	source, err := filepath.EvalSymlinks(filepath.Join(r.dir, file))
	if err != nil {
		return err
	}
	t.file(file, source)
	f, err := elf.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range libraries {
		if err := r.addLibrary(t, name); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) addLibrary(t tree, name string) error {
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib64"} {
		file := path.Join(dir, name)
		if _, err := os.Stat(filepath.Join(r.dir, file)); err == nil {
			if err := r.addProgram(t, file); err != nil {
				return err
			}
			// The dynamic loader has a fixed path.
			if strings.HasPrefix(name, "ld-linux") {
				return r.addProgram(t, path.Join("usr/lib64", name))
			}
			return nil
		}
	}
	return fmt.Errorf("library %s is in no package", name)
}

// moduleFolders are the folders and files whose modules a machine can load; what
// these depend on comes with them.
var moduleFolders = []string{
	"kernel/net/", "kernel/drivers/net/bonding/", "kernel/drivers/net/ipvlan/", "kernel/drivers/net/vxlan/", "kernel/drivers/net/ethernet/intel/igb",
	"kernel/drivers/net/veth.ko", "kernel/drivers/net/macvlan.ko", "kernel/drivers/net/macvtap.ko", "kernel/drivers/net/dummy.ko",
	"kernel/crypto/crc32c", "kernel/arch/x86/crypto/crc32c", // nf_tables does not load without them
	"kernel/drivers/net/vrf.ko", "kernel/drivers/net/bonding/", "kernel/drivers/net/ifb.ko", "kernel/drivers/net/tun.ko", "kernel/drivers/net/tap.ko",
}

func (r *root) addModules(t tree) error {
	dir := path.Join("usr/lib/modules", r.kernel)
	for _, index := range []string{"modules.dep", "modules.dep.bin", "modules.alias", "modules.alias.bin", "modules.softdep", "modules.symbols.bin", "modules.builtin.bin", "modules.builtin.alias.bin", "modules.order"} {
		source := filepath.Join(r.dir, dir, index)
		if _, err := os.Stat(source); err == nil {
			t.file(path.Join(dir, index), source)
		}
	}
	f, err := os.Open(filepath.Join(r.dir, dir, "modules.dep"))
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// A line is "module: all modules that it depends on".
		module, needs, _ := strings.Cut(lines.Text(), ":")
		if !slices.ContainsFunc(moduleFolders, func(p string) bool { return strings.HasPrefix(module, p) }) {
			continue
		}
		for _, m := range append(strings.Fields(needs), module) {
			t.file(path.Join(dir, m), filepath.Join(r.dir, dir, m))
		}
	}
	return lines.Err()
}

// write writes the tree as an archive of the format newc of cpio.
func (t tree) write(w io.Writer) error {
	// Each entry comes after the folders that it is in.
	all := tree{}
	for dest, e := range t {
		all[dest] = e
		for dir := path.Dir(dest); dir != "."; dir = path.Dir(dir) {
			if _, ok := t[dir]; !ok {
				all[dir] = entry{}
			}
		}
	}
	names := make([]string, 0, len(all))
	for dest := range all {
		names = append(names, dest)
	}
	slices.Sort(names)
	out := &cpio{w: w}
	for _, dest := range names {
		if err := out.add(dest, all[dest]); err != nil {
			return fmt.Errorf("pack %s: %w", dest, err)
		}
	}
	return out.header("TRAILER!!!", 0, 0)
}

// cpio writes an archive.
type cpio struct {
	w     io.Writer
	inode int
	size  int
}

func (c *cpio) add(dest string, e entry) error {
	switch {
	case e.target != "":
		return c.content(dest, 0o120777, strings.NewReader(e.target), len(e.target))
	case e.data != nil:
		return c.content(dest, 0o100755, strings.NewReader(string(e.data)), len(e.data))
	case e.source == "":
		return c.content(dest, 0o040755, strings.NewReader(""), 0)
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return c.content(dest, 0o100755, f, int(info.Size()))
}

func (c *cpio) content(dest string, mode int, r io.Reader, size int) error {
	if err := c.header(dest, mode, size); err != nil {
		return err
	}
	n, err := io.Copy(c, r)
	if err != nil {
		return err
	}
	if int(n) != size {
		return errors.New("the file changed while it was packed")
	}
	return c.pad()
}

func (c *cpio) header(dest string, mode, size int) error {
	c.inode++
	// Magic, inode, mode, uid, gid, links, time, size, device (2), special device (2),
	// length of the name, checksum.
	_, err := fmt.Fprintf(c, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(dest)+1, 0, dest)
	return errors.Join(err, c.pad())
}

func (c *cpio) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.size += n
	return n, err
}

func (c *cpio) pad() error {
	_, err := c.Write(make([]byte, (4-c.size%4)%4))
	return err
}
