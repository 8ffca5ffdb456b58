// SPDX-License-Identifier: Apache-2.0

// Package docs reads the project's Markdown as its readers do: pages with headings,
// links and blocks of code. Its tests hold what the pages promise: links lead
// somewhere, and objects are accepted by a real API server.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Page is one Markdown file.
type Page struct {
	Path    string   // from the root of the repository
	Anchors []string // of its headings, as GitHub makes them
	Links   []Link
	Blocks  []Block
}

// Link is where a link or an image leads, as written.
type Link struct {
	To   string
	Line int
}

// Block is fenced code.
type Block struct {
	Language string // the first word after the fence
	Text     string
	Line     int // of its first line of code
}

// Find returns the paths of all Markdown files below a folder, from there.
func Find(root string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", "bin"}, entry.Name()) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		relative, err := filepath.Rel(root, path)
		paths = append(paths, relative)
		return err
	})
	return paths, err
}

// Read reads a page of the repository at root.
func Read(root, path string) (Page, error) {
	source, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return Page{}, err
	}
	return parse(path, source)
}

func parse(path string, source []byte) (Page, error) {
	page := Page{Path: path}
	line := func(offset int) int { return 1 + strings.Count(string(source[:offset]), "\n") }
	headings := map[string]int{}
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	at := 1
	err := ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if node.Type() == ast.TypeBlock && node.Lines() != nil && node.Lines().Len() > 0 {
			at = line(node.Lines().At(0).Start)
		}
		switch node := node.(type) {
		case *ast.Heading:
			page.Anchors = append(page.Anchors, anchor(plain(node, source), headings))
		case *ast.Link:
			page.Links = append(page.Links, Link{string(node.Destination), at})
		case *ast.Image:
			page.Links = append(page.Links, Link{string(node.Destination), at})
		case *ast.FencedCodeBlock:
			page.Blocks = append(page.Blocks, Block{string(node.Language(source)), string(node.Lines().Value(source)), at})
		}
		return ast.WalkContinue, nil
	})
	return page, err
}

// plain is the text below a node without its markup.
func plain(node ast.Node, source []byte) string {
	var b strings.Builder
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		switch child := child.(type) {
		case *ast.Text:
			b.Write(child.Value(source))
		case *ast.String:
			b.Write(child.Value)
		default:
			b.WriteString(plain(child, source))
		}
	}
	return b.String()
}

// anchor is the fragment by which GitHub finds a heading: letters, digits, hyphens
// and underscores in lower case, and a number if the page had it before.
func anchor(heading string, seen map[string]int) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
	seen[name]++
	if times := seen[name]; times > 1 {
		return name + "-" + strconv.Itoa(times-1)
	}
	return name
}
