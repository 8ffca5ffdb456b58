// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"
)

//go:embed static templates
var files embed.FS

// StaticPrefix is the path below which files are, each with the hash of its content in its URL.
const StaticPrefix = "/static/"

// assets are the files that pages load.
type assets struct {
	byName map[string]asset
}

type asset struct {
	url     string
	content []byte
}

var mimeTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

func loadAssets() *assets {
	a := &assets{map[string]asset{}}
	err := fs.WalkDir(files, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || mimeTypes[path.Ext(name)] == "" {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		base := path.Base(name)
		a.byName[base] = asset{StaticPrefix + hex.EncodeToString(sum[:8]) + "/" + base, content}
		return nil
	})
	if err != nil {
		panic(err) // they are in the program
	}
	return a
}

// shared are the files of all sites.
var shared = sync.OnceValue(loadAssets)

// Static serves the files that pages load, below StaticPrefix, and nothing else. They are in the source: whoever asks may have them.
func Static() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+StaticPrefix+"{hash}/{name}", shared())
	return mux
}

// StyleSheet returns the URL of the pages' style.
func StyleSheet() string { return shared().byName["console.css"].url }

// url returns the URL of a file.
func (a *assets) url(name string) (string, error) {
	file, ok := a.byName[name]
	if !ok {
		return "", fmt.Errorf("there is no file %s", name)
	}
	return file.url, nil
}

// ServeHTTP serves a file. What has the URL of a hash never changes.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file, ok := a.byName[r.PathValue("name")]
	if !ok || file.url != r.URL.Path {
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "there is no such file: load the page again", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", mimeTypes[path.Ext(file.url)])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file.content))
}

// parse returns a template for each view.
func parse(a *assets) map[string]*template.Template {
	all := map[string]*template.Template{}
	shared := template.Must(template.New("").Funcs(functions(a)).ParseFS(files, "templates/shared/*.html"))
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
