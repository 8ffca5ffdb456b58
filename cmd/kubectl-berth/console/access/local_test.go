// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// The gate lets in the token only, and only at its own address.
func TestLocal(t *testing.T) {
	listener := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8765}
	gate, err := NewLocal(listener, &Writer{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewLocal(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8766}, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := url.Parse(gate.URL(listener))
	if err != nil {
		t.Fatal(err)
	}
	handler := gate.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Of(r.Context()).All() || WriterOf(r.Context()) == nil {
			t.Error("the user of a local console may not see all that he can read, or may not write")
		}
		w.WriteHeader(http.StatusNoContent)
	}), func(w http.ResponseWriter, _ *http.Request, status int, _ string) { w.WriteHeader(status) })
	ask := func(path string, change func(*http.Request)) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, path, nil)
		request.Host = "127.0.0.1:8765"
		change(request)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return recorder
	}
	nothing := func(*http.Request) {}

	entered := ask("/addresses?q=web&"+opened.RawQuery, nothing)
	cookies := (&http.Response{Header: entered.Header()}).Cookies()
	if entered.Code != http.StatusSeeOther || entered.Header().Get("Location") != "/addresses?q=web" || len(cookies) != 1 {
		t.Fatalf("the URL of the user is answered %d to %q", entered.Code, entered.Header().Get("Location"))
	}
	cookie := cookies[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode {
		t.Errorf("the cookie is %+v", cookie)
	}
	if away := ask("//example.com/?"+opened.RawQuery, nothing).Header().Get("Location"); away == "//example.com/" {
		t.Errorf("the gate sends the browser to %q", away)
	}
	for name, test := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"nothing":                   {nothing, http.StatusUnauthorized},
		"cookie":                    {func(r *http.Request) { r.AddCookie(cookie) }, http.StatusNoContent},
		"bearer":                    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+gate.token) }, http.StatusNoContent},
		"wrong bearer":              {func(r *http.Request) { r.Header.Set("Authorization", "Bearer x"); r.AddCookie(cookie) }, http.StatusUnauthorized},
		"wrong cookie":              {func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie.Name, Value: "x"}) }, http.StatusUnauthorized},
		"another console's cookie":  {func(r *http.Request) { r.AddCookie(&http.Cookie{Name: other.cookie, Value: other.token}) }, http.StatusUnauthorized},
		"another console's token":   {func(r *http.Request) { r.URL.RawQuery = "token=" + other.token }, http.StatusUnauthorized},
		"localhost":                 {func(r *http.Request) { r.Host = "localhost:8765"; r.AddCookie(cookie) }, http.StatusNoContent},
		"rebound name":              {func(r *http.Request) { r.Host = "evil.example:8765"; r.AddCookie(cookie) }, http.StatusMisdirectedRequest},
		"rebound name with a token": {func(r *http.Request) { r.Host = "evil.example:8765"; r.URL.RawQuery = opened.RawQuery }, http.StatusMisdirectedRequest},
		"another port":              {func(r *http.Request) { r.Host = "127.0.0.1:80"; r.AddCookie(cookie) }, http.StatusMisdirectedRequest},
	} {
		if got := ask("/", test.change).Code; got != test.status {
			t.Errorf("%s: %d, want %d", name, got, test.status)
		}
	}
}
