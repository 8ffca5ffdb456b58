// SPDX-License-Identifier: Apache-2.0

package gate

import (
	_ "embed"
	"html/template"
	"net/http"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
)

//go:embed login.html
var loginHTML string

var loginPage = template.Must(template.New("login").Funcs(template.FuncMap{"style": page.StyleSheet}).Parse(loginHTML))

// login draws the page where a user gives a token, with the problem of the last attempt.
func login(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = loginPage.Execute(w, problem) // the client is gone
}
