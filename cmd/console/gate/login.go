// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"html/template"
	"net/http"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
)

var loginPage = template.Must(template.New("login").Funcs(template.FuncMap{"style": page.StyleSheet}).Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>Log in · Berth</title>
<link rel="stylesheet" href="{{style}}"></head>
<body>
<main>
<h1>Berth</h1>
{{with .}}<p class="mistake" role="alert">{{.}}</p>{{end}}
<form class="search" method="post" action="/login">
<div class="search-main"><label for="token">A token of this cluster's API server</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus><button>Log in</button></div>
<p class="quiet">For example <code>kubectl create token ACCOUNT -n NAMESPACE</code>. You see what the token may list:
FloatingIPs, or else the pods of namespaces. The token stays in this browser, and is sent to this page only.</p>
</form>
</main>
</body>
</html>
`))

// login draws the page where a user gives a token, with the problem of the last attempt.
func login(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = loginPage.Execute(w, problem) // the client is gone
}
