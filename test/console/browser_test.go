// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/sha512"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

var update = flag.Bool("update", false, "write the pictures of docs/images")

// axe is axe-core, which finds what keeps people with disabilities from using a page. axePackages
// says where it is from.
var (
	//go:embed testdata/axe/axe.min.js
	axe string
	//go:embed testdata/axe/packages.json
	axePackages []byte
)

// pages are views of the console, each in a state that has something to see.
var pages = []string{
	"/", "/pools/shop", "/pools/ads", "/pools/edge", "/addresses", "/addresses?q=checkout", "/addresses?q=nobody-has-this&state=Held", "/addresses/" + movingAddress,
	"/addresses/10.0.70.12", "/addresses/10.0.70.250", "/addresses/192.0.2.1", "/claims", "/services", "/waiting", "/waiting?q=nothing", "/nodes", "/bgp", "/failover", "/changes", "/findings", "/pools/none", "/nothing",
}

// The pages in a real browser: while the cluster changes, without JavaScript, by keyboard,
// enlarged, in both themes.
func TestBrowser(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	paint(w)
	w.Grant("viewer-rbac.yaml", viewer)
	c := startAs(w, viewer)
	c.until("wait until the console knows all", func() error {
		s := read[summary](c, "/summary")
		return complainIf(s.Addresses != 156 || s.Waiting != 2 || s.Nodes != 4 || s.Pools != 5 || len(s.Missing) > 0, "%+v", s)
	})
	b := startBrowser(w)
	if *update {
		takePictures(b.open(c))
	}
	tab := b.open(c)
	checkWidth(tab)
	checkAccess(tab)
	checkKeyboard(tab)
	checkWithoutScripts(b.open(c))
	checkLive(b, c)
	w.Grant("operator-rbac.yaml", "operator")
	w.Bind("berth-viewer", "operator")
	checkRelease(b, startWith(w, w.Config, as("operator"), []string{"--writes"}))
}

// checkRelease releases addresses by the pages, with scripts and without.
func checkRelease(b *browser, c *console) {
	w := c.w
	w.T.Helper()
	press := func(t *tab, button string) {
		t.c.w.T.Helper()
		if _, err := chromedp.RunResponse(t.ctx, chromedp.Click(chromedp.CSS(button))); err != nil {
			t.c.w.T.Fatal(err)
		}
	}
	const form = `form[action="/release"] button`
	for _, tc := range []struct {
		scripts          bool
		path, ask, words string
		gone             []string
	}{
		{true, "/addresses/10.0.70.16", "would release 1 address", "1 address is released", []string{"10.0.70.16"}},
		{false, "/addresses?state=Retained&pool=shop&owner=cart", "would release 2 addresses", "2 addresses are released", []string{"10.0.70.96", "10.0.70.103"}},
	} {
		t := b.open(c)
		t.scripts(tc.scripts)
		t.visit(tc.path)
		press(t, form)
		t.has("/release", tc.ask)
		look := func(what string) {
			if tc.scripts { // axe is one
				checkTab(t, what)
			}
		}
		look("the page to confirm")
		for _, addr := range tc.gone {
			t.has("/release", addr)
			now(w, addr) // it is there
		}
		press(t, form)
		t.has("/release", tc.words)
		look("the page with the outcome")
		for _, addr := range tc.gone {
			if _, err := w.Berth.FloatingIPs.Get(w.Ctx, addr, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				w.T.Errorf("%s is still there: %v", addr, err)
			}
		}
	}
}

// checkWidth sees that no page is wider than the window, also if the user enlarges it to 200 % and
// to 400 %: only tables scroll.
func checkWidth(t *tab) {
	t.c.w.T.Helper()
	for _, zoom := range []int64{1, 2, 4} {
		t.size(1280/zoom, 1024/zoom, float64(zoom))
		for _, path := range pages {
			t.visit(path)
			type widths struct{ Page, Window int }
			if got := eval[widths](t, "({Page: document.documentElement.scrollWidth, Window: document.documentElement.clientWidth})"); got.Page > got.Window {
				t.c.w.T.Errorf("%s at %d %%: the page is %d wide, and the window %d", path, zoom*100, got.Page, got.Window)
			}
		}
	}
	t.size(1280, 800, 1)
}

// checkAccess has axe look at each page in both themes.
func checkAccess(t *tab) {
	t.c.w.T.Helper()
	for _, theme := range []string{"light", "dark"} {
		t.theme(theme)
		for _, path := range pages {
			t.visit(path)
			checkTab(t, path+", "+theme)
			if dark := eval[bool](t, "matchMedia('(prefers-color-scheme: dark)').matches"); dark != (theme == "dark") {
				t.c.w.T.Fatalf("the page is not %s", theme)
			}
		}
	}
	t.theme("light")
}

// checkTab has axe look at the page that a tab shows.
func checkTab(t *tab, what string) {
	t.c.w.T.Helper()
	if _, err := chromedp.Run(t.ctx, chromedp.Evaluate[any](axe+"\n;0")); err != nil {
		t.c.w.T.Fatal(err)
	}
	for _, finding := range eval[[]string](t, `axe.run().then(said => said.violations.map(one => one.id + ': ' + one.help + '\n' +
		one.nodes.map(node => '  ' + node.html + '\n    ' + node.failureSummary.replaceAll('\n', '\n    ')).slice(0, 3).join('\n')))`) {
		t.c.w.T.Errorf("%s: %s", what, finding)
	}
}

// reachable are the parts of a page that the Tab key must reach, in their order: each has a name
// here.
const reachable = `[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]')]
	.filter(part => part.checkVisibility({visibilityProperty: true}) && part.getClientRects().length > 0)`

// name of a part, for messages and comparisons.
const name = `const name = part => part === document.body ? '' : (part.id ? '#' + part.id + ' ' : '') + part.tagName + ' ' + (part.getAttribute('aria-label') || part.textContent || part.name).trim().slice(0, 40)`

// checkKeyboard goes through pages by the Tab key: it reaches all that a mouse can, in the order of
// the page, and it can be seen where it is.
func checkKeyboard(t *tab) {
	t.c.w.T.Helper()
	for _, path := range []string{"/addresses?q=checkout", "/", "/waiting"} {
		t.visit(path)
		want := eval[[]string](t, "(() => { %s; return %s.map(name) })()", name, reachable)
		var got []string
		for range len(want) + 1 {
			t.do(chromedp.KeyEvent(kb.Tab))
			type focus struct {
				Name    string
				Visible bool
			}
			at := eval[focus](t, `(() => { %s; const part = document.activeElement, style = getComputedStyle(part)
				return {Name: name(part), Visible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none'} })()`, name)
			if at.Name == "" {
				break
			}
			got = append(got, at.Name)
			if !at.Visible {
				t.c.w.T.Errorf("%s: nobody sees that %q has the focus", path, at.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.c.w.T.Errorf("%s: Tab reaches\n  %s\nwant\n  %s", path, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		for _, needed := range []string{"#q INPUT"} {
			if path != "/waiting" && !slices.ContainsFunc(got, func(name string) bool { return strings.HasPrefix(name, needed) }) {
				t.c.w.T.Errorf("%s: Tab does not reach %s", path, needed)
			}
		}
	}
}

// checkWithoutScripts uses the pages where no script may run: all have their content, and the
// search works.
func checkWithoutScripts(t *tab) {
	t.c.w.T.Helper()
	t.scripts(false)
	for path, want := range map[string]string{
		"/": "shop-v6", "/pools/shop": "Free ranges", "/addresses": "bidder-0-0", "/addresses/" + movingAddress: "checkout-0", "/waiting": waitingPod, "/nodes": "node-3",
		"/changes": "This console has seen each since", "/claims": "There is no IPClaim", "/services": "No Service has an address", "/bgp": "There is no BGPPeer", "/failover": "kubectl berth failover", "/findings": "kubectl berth check",
	} {
		t.visit(path)
		if page := eval[string](t, "document.body.innerText"); !strings.Contains(page, want) {
			t.c.w.T.Errorf("without scripts %s does not have %q:\n%.2000s", path, want, page)
		}
	}
	t.visit("/")
	eval[bool](t, "(document.querySelector('#q').focus(), true)")
	t.submit("checkout-1")
	t.has("/addresses?q=checkout-1", "10.0.72.3")
	t.visit("/addresses")
	eval[bool](t, "(document.querySelector('#q').focus(), true)")
	t.submit("10.0.71.0/25")
	t.has("q=10.0.71.0%2F25", "ledger-0")
	// All pages of all addresses, by their links.
	t.visit("/addresses")
	rows := 0
	for {
		rows += eval[int](t, "document.querySelectorAll('table.addresses tbody tr').length")
		next := eval[string](t, "document.querySelector('a[rel=next]')?.getAttribute('href') || ''")
		if next == "" {
			break
		}
		t.visit(next)
	}
	if rows != 156 {
		t.c.w.T.Errorf("without scripts the pages of addresses have %d rows, want 156", rows)
	}
	t.scripts(true)
}

// submit types into the field that has the focus, presses Enter, and waits until the next page is
// loaded.
func (t *tab) submit(words string) {
	t.c.w.T.Helper()
	if _, err := chromedp.RunResponse(t.ctx, chromedp.KeyEvent(words+kb.Enter)); err != nil {
		t.c.w.T.Fatal(err)
	}
}

// has complains unless the tab is at a URL with a part, and its page has a text.
func (t *tab) has(part, text string) {
	t.c.w.T.Helper()
	if at := eval[string](t, "location.href"); !strings.Contains(at, part) {
		t.c.w.T.Errorf("the tab is at %s, want %s in it", at, part)
	}
	if page := eval[string](t, "document.body.innerText"); !strings.Contains(page, text) {
		t.c.w.T.Errorf("%s does not have %q:\n%.2000s", part, text, page)
	}
}

// checkLive has things happen while one looks.
func checkLive(b *browser, c *console) {
	w := b.w
	w.T.Helper()
	search, overview, waiting := b.open(c), b.open(c), b.open(c)
	overview.visit("/")
	waiting.visit("/waiting")
	waiting.becomes("the pod is shown to wait", text("main tr", waitingPod))
	search.visit("/addresses")
	eval[bool](search, "(document.querySelector('#q').focus(), true)")
	search.do(chromedp.KeyEvent(movingAddress))
	search.becomes("one address is left", "document.querySelectorAll('table.addresses tbody tr').length === 1 && "+text("main tr", "checkout-0"))
	search.do(chromedp.KeyEvent(kb.ArrowLeft))
	// A page that is loaded anew forgets this.
	for _, t := range []*tab{search, overview, waiting} {
		t.becomes("the page follows", text("#status", "Live"))
		eval[bool](t, "(window.loadedOnce = true)")
	}
	const mine = `window.loadedOnce === true && document.activeElement.id === 'q' && document.activeElement.value === '` + movingAddress + `' && document.activeElement.selectionStart === ` + "8"

	// The pod moves to another node, and then the address to the pod that waits.
	simulation.Patch(w, w.Berth.FloatingIPs, movingAddress, `{"spec":{"node":"node-4","pod":{"name":"checkout-0","uid":"v"}}}`)
	search.becomes("the row has the other node", text("main tr", "node-4")+" && "+mine)
	simulation.Patch(w, w.Berth.FloatingIPs, movingAddress, `{"spec":{"node":"node-2","pod":{"name":%q,"uid":"x"}}}`, waitingPod)
	if err := w.Kube.CoreV1().Pods("shop").Bind(w.Ctx, bindingOf(waitingPod, "node-2"), metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	search.becomes("the row has the other pod", text("main tr", waitingPod)+" && "+mine)
	waiting.becomes("the pod waits no more", "!("+text("main tr", waitingPod)+") && window.loadedOnce === true && "+text("main tr", "checkout-4")+" && document.querySelector('#waiting-count').textContent === '1'")
	overview.becomes("the last change is shown", text("main .feed li", waitingPod)+" && window.loadedOnce === true")
	w.T.Log("the row changed, and what was typed stayed")

	// The last waiting pod is deleted.
	if err := w.Kube.CoreV1().Pods("shop").Delete(w.Ctx, "checkout-4", *metav1.NewDeleteOptions(0)); err != nil {
		w.T.Fatal(err)
	}
	waiting.becomes("no pod waits", text("main", "No pod waits for an address")+" && window.loadedOnce === true")
}

// takePictures writes the pictures of the documentation.
func takePictures(t *tab) {
	t.c.w.T.Helper()
	root, err := deploy.Root()
	if err != nil {
		t.c.w.T.Fatal(err)
	}
	for _, theme := range []string{"light", "dark"} {
		t.theme(theme)
		for name, path := range map[string]string{"overview": "/", "pool": "/pools/shop", "addresses": "/addresses?q=shop", "waiting": "/waiting"} {
			t.visit(path)
			t.becomes("the page follows", text("#status", "Live"))
			picture, err := chromedp.Run(t.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.c.w.T.Fatal(err)
			}
			file := fmt.Sprintf("docs/images/console-%s-%s.png", name, theme)
			t.c.w.T.Logf("%s: %d kB", file, len(picture)/1000)
			if err := os.WriteFile(filepath.Join(root, file), picture, 0o644); err != nil {
				t.c.w.T.Fatal(err)
			}
		}
	}
	t.theme("light")
}

// The vendored axe-core is that of its package, and nobody has edited it.
func TestAxe(t *testing.T) {
	t.Parallel()
	var packages []struct {
		Files map[string]struct{ Integrity string }
	}
	if err := json.Unmarshal(axePackages, &packages); err != nil {
		t.Fatal(err)
	}
	for name, file := range packages[0].Files {
		text, err := os.ReadFile(filepath.Join("testdata/axe", name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha512.Sum512(text)
		if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != file.Integrity {
			t.Errorf("%s has %s, want %s", name, got, file.Integrity)
		}
	}
}
