// SPDX-License-Identifier: Apache-2.0
// What the pages need besides htmx. Without it they work, too, and are reloaded by hand.
(() => {
  'use strict'
  const root = document.documentElement
  const status = document.getElementById('status')
  const said = document.getElementById('said')
  const ages = /<time[^>]*>[^<]*<\/time>/g
  let source, last, announced = 0
  root.classList.add('js')

  // show says in the header whether the page is of now.
  const show = (state, text) => {
    status.className = 'status ' + state
    status.textContent = text
  }
  const say = text => { said.textContent = text }

  // A hidden tab has no stream: browsers open six connections to a host at most.
  htmx.createEventSource = url => (source = new EventSource(url))
  const close = () => { if (source) source.close() }
  const open = () => {
    const stream = document.getElementById('stream')
    const fresh = stream.cloneNode()
    stream.replaceWith(fresh)
    htmx.process(fresh)
  }
  document.addEventListener('visibilitychange', () => document.hidden ? close() : open())
  addEventListener('pagehide', close)
  addEventListener('pageshow', event => { if (event.persisted) open() })
  document.addEventListener('htmx:sseOpen', () => show('on', 'Live'))
  document.addEventListener('htmx:sseError', () => show('off', 'No connection'))
  document.addEventListener('htmx:sendError', () => show('off', 'No connection'))
  document.addEventListener('htmx:beforeRequest', event => { if (document.hidden) event.preventDefault() })

  // The fragment of a URL, such as #runs, is where the user has been: it is no reason to go there again.
  document.addEventListener('htmx:configRequest', event => { event.detail.path = event.detail.path.split('#')[0] })

  document.addEventListener('htmx:beforeSwap', event => {
    const answer = event.detail.xhr
    if (!(answer.getResponseHeader('Content-Type') || '').startsWith('text/html')) {
      event.detail.shouldSwap = false
      show('off', answer.status === 401 ? 'Not let in: open the printed URL again' : 'Error ' + answer.status)
      return
    }
    const text = answer.responseText.replace(ages, '')
    const searched = event.detail.requestConfig.elt.id === 'search'
    if (last !== undefined && text !== last && (searched || Date.now() - announced > 20000)) {
      announced = Date.now()
      const rows = new DOMParser().parseFromString(answer.responseText, 'text/html').querySelector('[data-said]')
      say(searched && rows ? rows.dataset.said : 'This page has changed.')
    }
    last = text
  })

  document.addEventListener('click', event => {
    const button = event.target.closest('[data-copy]')
    if (button) navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = 'Copied'; say('Copied.') }, () => say('Copying is not possible: select the text.'))
  })
})()
