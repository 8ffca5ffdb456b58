// SPDX-License-Identifier: Apache-2.0

package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static templates
var files embed.FS

// StaticPrefix is the path below which files are, each with the hash of its content in its URL.
const StaticPrefix = "/static/"

// assets are the URLs of the files that pages load, by their names.
type assets map[string]string

var mimeTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// shared are the files of all sites.
var shared = sync.OnceValue(func() assets {
	a := assets{}
	err := fs.WalkDir(files, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || mimeTypes[path.Ext(name)] == "" {
			return err
		}
		content, err := files.ReadFile(name)
		sum := sha256.Sum256(content)
		a[path.Base(name)] = StaticPrefix + hex.EncodeToString(sum[:8]) + strings.TrimPrefix(name, "static")
		return err
	})
	if err != nil {
		panic(err) // they are in the program
	}
	return a
})

// Static serves the files that pages load, and nothing else. Whoever asks may have them.
func Static() http.Handler { return shared() }

func StyleSheet() string { return shared()["console.css"] }

// ServeHTTP serves a file. What has the URL of a hash never changes.
func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, StaticPrefix), "/") // after the hash
	if a[path.Base(name)] != r.URL.Path {
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "there is no such file: load the page again", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", mimeTypes[path.Ext(name)])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeFileFS(w, r, files, "static/"+name)
}

func parse() map[string]*template.Template {
	all := map[string]*template.Template{}
	shared := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/shared/*.html"))
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is fine
	}
	for _, name := range names {
		base := path.Base(name)
		all[base[:len(base)-len(".html")]] = template.Must(template.Must(shared.Clone()).ParseFS(files, name))
	}
	return all
}
