package console

import _ "github.com/chromedp/chromedp"
