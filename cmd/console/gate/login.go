// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"html/template"
	"net/http"
)

var loginPage = template.Must(template.New("login").Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>Log in – Berth</title></head>
<body>
<main>
<h1>Berth</h1>
{{with .}}<p role="alert">{{.}}</p>{{end}}
<form method="post" action="/login">
<p><label for="token">A token of this cluster's API server</label></p>
<p><input id="token" name="token" type="password" size="60" autocomplete="off" required autofocus></p>
<p><button>Log in</button></p>
</form>
<p>For example <code>kubectl create token ACCOUNT -n NAMESPACE</code>. You see what the token may list:
FloatingIPs, or else the pods of namespaces. The token stays in this browser, and is sent to this page only.</p>
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
