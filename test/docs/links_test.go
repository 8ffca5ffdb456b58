// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

func pages(t *testing.T) map[string]Page {
	t.Helper()
	paths, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Page{}
	for _, path := range paths {
		if found[path], err = Read(root, path); err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 20 {
		t.Fatalf("found %d pages only", len(found))
	}
	return found
}

var elsewhere = regexp.MustCompile(`^[a-z]+:`)

// Links of a page lead to files of the repository, and to headings that they have.
func TestLinks(t *testing.T) {
	all := pages(t)
	links := 0
	for path, page := range all {
		for _, link := range page.Links {
			if elsewhere.MatchString(link.To) {
				continue
			}
			links++
			file, heading, _ := strings.Cut(link.To, "#")
			if file = filepath.Join(filepath.Dir(path), file); strings.HasPrefix(link.To, "#") {
				file = path
			}
			if problem := broken(all, file, heading); problem != "" {
				t.Errorf("%s:%d: %s: %s", path, link.Line, link.To, problem)
			}
		}
	}
	if links == 0 {
		t.Error("found no links")
	}
}

// broken says what is wrong with a reference to a file and a heading of it.
func broken(all map[string]Page, file, heading string) string {
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return "no such file"
	}
	if target, is := all[file]; heading != "" && (!is || !slices.Contains(target.Anchors, heading)) {
		return "no such heading"
	}
	return ""
}

// The commands of every page that has some are run by a test of another package.
func TestCommands(t *testing.T) {
	run := slices.Concat(OnLab, OnAPIServer)
	for path, page := range pages(t) {
		has := slices.ContainsFunc(page.Blocks, func(b Block) bool { return b.Language == "console" })
		if has != slices.Contains(run, path) {
			t.Errorf("%s: has blocks marked console: %t; in OnLab or OnAPIServer: %t", path, has, !has)
		}
	}
}

var mention = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(#[a-z0-9_-]+)?`)

// Links to pages in code, messages and manifests lead somewhere as well.
func TestMentions(t *testing.T) {
	all := pages(t)
	mentions := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".yaml", ".yml", ".tpl", ".txt", ".json"}, filepath.Ext(path)) && entry.Name() != "Makefile" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range mention.FindAllString(string(content), -1) {
			mentions++
			file, heading, _ := strings.Cut(found, "#")
			if problem := broken(all, file, heading); problem != "" {
				t.Errorf("%s: %s: %s", path, found, problem)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if mentions == 0 {
		t.Error("found no mention of a page")
	}
}

var metric = regexp.MustCompile(`\bberth_(agent|assigner|claim|pool|reclaim|scheduler)_[a-z_]+[a-z]\b`)

// A metric that a page names exists, or its histogram does.
func TestMetrics(t *testing.T) {
	const reference = "docs/reference/metrics.md"
	known, err := os.ReadFile(filepath.Join(root, reference))
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for path := range pages(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metric.FindAllString(string(content), -1) {
			names++
			of := regexp.MustCompile("_(bucket|count|sum)$").ReplaceAllString(name, "")
			if !strings.Contains(string(known), "`"+name+"`") && !strings.Contains(string(known), "`"+of+"` | histogram") {
				t.Errorf("%s: no metric %s in %s", path, name, reference)
			}
		}
	}
	if names < 20 {
		t.Errorf("found %d names of metrics only", names)
	}
}

func TestParse(t *testing.T) {
	page, err := parse("a.md", []byte("# The `a-b` of *C*, 2 & 3\n\n## Links\n\nSee [b](b.md#x)\nand ![c](c.svg).\n\n| a |\n|---|\n| [d](d.md) |\n\n## Links\n\n```yaml extra\na: [b](no.md)\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Page{
		Path:    "a.md",
		Anchors: []string{"the-a-b-of-c-2--3", "links", "links-1"},
		Links:   []Link{{"b.md#x", 5}, {"c.svg", 5}, {"d.md", 10}},
		Blocks:  []Block{{"yaml", "a: [b](no.md)\n", 15}},
	}
	if diff := cmp.Diff(want, page); diff != "" {
		t.Error(diff)
	}
}
