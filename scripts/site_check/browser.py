"""The browser, kept from reaching anything but the site under test, and watched."""

from playwright.sync_api import Browser, BrowserContext, Page, Playwright
from playwright.sync_api import Error as PlaywrightError

from nlm_core import UserError
from site_check.judge import Form, is_foreign

# Milliseconds. Minutes, not seconds: a busy machine is no defect of the page.
PATIENCE = 180_000
# Chromium would call home on its own; and no name is looked up, whatever a page asks for.
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def launch(playwright: Playwright, executable: str) -> Browser:
    """Start the browser, headless.

    Raises:
        UserError: it does not start.
    """
    try:
        # Root has no sandbox to offer Chromium; the pages are our own.
        return playwright.chromium.launch(
            executable_path=executable, args=QUIET, chromium_sandbox=False, timeout=PATIENCE
        )
    except PlaywrightError as error:
        raise UserError(f"{executable} does not start: {error.message.splitlines()[0]}") from None


def opened(browser: Browser, home: str, form: Form) -> BrowserContext:
    """A fresh browser profile that shows pages in this form and reaches nothing but `home`."""
    context = browser.new_context(
        viewport={"width": form.width, "height": form.height},
        color_scheme=form.scheme,
        reduced_motion="reduce",
        service_workers="block",
        offline=form.from_disk,
    )
    chosen = "".join(f"localStorage.setItem('{key}', '{form.scheme}');" for key in ("mode", "theme"))
    context.add_init_script(f"try {{ {chosen} }} catch {{ /* a frame without storage */ }}")
    context.set_default_timeout(PATIENCE)
    context.route(lambda url: is_foreign(url, home), lambda route: route.abort("blockedbyclient"))
    return context


def watch(page: Page, home: str, wrong: list[str]) -> list[str]:
    """Note everything that goes wrong while a page lives; returns the list that its requests are noted in."""
    requests: list[str] = []

    def asked(url: str) -> None:
        requests.append(url)
        if is_foreign(url, home):
            wrong.append(f"asks another host: {url[:120]}")

    def failed(url: str, why: str | None) -> None:
        if not is_foreign(url, home):  # those are blocked here, and noted already
            wrong.append(f"a request fails: {url.removeprefix(home)[:120]}: {why}")

    def said(kind: str, text: str) -> None:
        # Chromium also says in the console that a request failed, without saying which; `failed` does.
        if kind == "error" and not text.startswith("Failed to load resource"):
            wrong.append(f"console error: {text.splitlines()[0][:200]}")

    page.on("request", lambda request: asked(request.url))
    page.on("requestfailed", lambda request: failed(request.url, request.failure))
    page.on("response", lambda answer: failed(answer.url, str(answer.status)) if answer.status >= 400 else None)
    page.on("console", lambda message: said(message.type, message.text))
    page.on("pageerror", lambda error: wrong.append(f"script error: {error.message.splitlines()[0][:200]}"))
    return requests
