// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/berth-dev/berth/test/console/chromium"
	"github.com/berth-dev/berth/test/simulation"
)

// browser is a Chromium that runs, without a window.
type browser struct {
	w   *simulation.World
	ctx context.Context
}

// startBrowser starts one, which ends with the test.
func startBrowser(w *simulation.World) *browser {
	w.T.Helper()
	program, err := chromium.Program(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	// The browser sees no other folder of the host.
	profile, err := os.MkdirTemp("/tmp", "berth-console-")
	if err != nil {
		w.T.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU)
	allocator, stop := chromedp.NewExecAllocator(w.Ctx, options...)
	ctx, closeBrowser := chromedp.NewContext(allocator)
	w.T.Cleanup(func() {
		closeBrowser()
		stop()
		if err := os.RemoveAll(profile); err != nil {
			w.T.Error(err)
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		w.T.Fatalf("start Chromium: %v", err)
	}
	return &browser{w, ctx}
}

// tab is a tab of the browser with a page of a console. At the end of the test it complains of
// requests to other hosts, of violations of the page's policy, and of errors of scripts.
type tab struct {
	c   *console
	ctx context.Context

	mu    sync.Mutex
	wrong []string
}

// open opens a tab, and lets it in.
func (b *browser) open(c *console) *tab {
	b.w.T.Helper()
	ctx, closeTab := chromedp.NewContext(b.ctx)
	t := &tab{c: c, ctx: ctx}
	b.w.T.Cleanup(func() {
		closeTab()
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, text := range t.wrong {
			b.w.T.Errorf("the browser: %s", text)
		}
	})
	if err := chromedp.Listen(ctx, t.note); err != nil {
		b.w.T.Fatal(err)
	}
	call(t, audits.Enable, cdp.Empty{})
	call(t, log.Enable, cdp.Empty{})
	call(t, network.Enable, network.EnableParams{})
	t.size(1280, 800, 1)
	t.visit("/?token=" + url.QueryEscape(c.token))
	return t
}

func (t *tab) note(event any) {
	complain := func(format string, args ...any) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
	}
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(event.Request.URL); err != nil || to.Scheme != "data" && to.Scheme+"://"+to.Host != t.c.root {
			complain("a request to %s", event.Request.URL)
		}
	case *audits.EventIssueAdded:
		if details := event.Issue.Details.ContentSecurityPolicyIssueDetails; details != nil {
			complain("%s forbids %s (%s)", details.ViolatedDirective, details.BlockedURL, details.ContentSecurityPolicyViolationType)
		}
	case *log.EventEntryAdded:
		if entry := event.Entry; entry.Level == log.EntryLevelError && entry.Source != log.EntrySourceNetwork {
			complain("%s: %s", entry.URL, entry.Text)
		}
	case *runtime.EventExceptionThrown:
		complain("an error of a script: %s", event.ExceptionDetails.Text)
	}
}

// call calls a command of the browser's protocol.
func call[P, R any](t *tab, command cdp.Command[P, R], parameters P) {
	t.c.w.T.Helper()
	if _, err := chromedp.Call(t.ctx, command, parameters); err != nil {
		t.c.w.T.Fatalf("%s: %v", command.Method, err)
	}
}

// size makes the page so large, in pixels of CSS. At scale 2 it is as if the user zoomed to 200 %.
func (t *tab) size(width, height int64, scale float64) {
	t.c.w.T.Helper()
	t.do(chromedp.EmulateViewport(width, height, chromedp.EmulateScale(scale)))
}

// theme chooses one of "light" and "dark".
func (t *tab) theme(name string) {
	t.c.w.T.Helper()
	call(t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// scripts says whether pages may run scripts.
func (t *tab) scripts(may bool) {
	t.c.w.T.Helper()
	call(t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !may})
}

func (t *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	t.c.w.T.Helper()
	if err := chromedp.Do(t.ctx, steps...); err != nil {
		t.c.w.T.Fatal(err)
	}
}

// visit goes to a page and waits until it is loaded.
func (t *tab) visit(path string) {
	t.c.w.T.Helper()
	if err := chromedp.Do(t.ctx, chromedp.Navigate(t.c.root+path)); err != nil {
		t.c.w.T.Fatalf("go to %s: %v", path, err)
	}
}

// eval returns the value of an expression in the page; of a promise, when it is kept.
func eval[T any](t *tab, format string, args ...any) T {
	t.c.w.T.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, simulation.Patience)
	defer cancel()
	expression := fmt.Sprintf(format, args...)
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.c.w.T.Fatalf("%.300s: %v", expression, err)
	}
	return value
}

// becomes waits until an expression is true. It looks when the page changes.
func (t *tab) becomes(what, expression string) {
	t.c.w.T.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, simulation.Patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`new Promise(kept => {
		const holds = () => `+expression+`
		if (holds()) return kept(true)
		new MutationObserver((_, observer) => { if (holds()) { observer.disconnect(); kept(true) } })
			.observe(document, {subtree: true, childList: true, characterData: true, attributes: true})
	})`, chromedp.EvalAwaitPromise)); err != nil {
		t.c.w.T.Fatalf("wait until %s: %v; the page is\n%.3000s", what, err, eval[string](t, "document.body.innerText"))
	}
}

// text is an expression: whether a part of the page has a text.
func text(selector, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%q)].some(part => part.textContent.includes(%q))", selector, text)
}
