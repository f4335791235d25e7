"""Every page of the built book in a browser: served and from disk, wide and narrow, light and dark."""

import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext
from playwright.sync_api import Error as PlaywrightError

from site_check.browser import PATIENCE, opened, watch
from site_check.judge import Checked, Finding, Form, built_pages, judge, judge_axe, judge_links, merged

SEARCHED = "norm"
# Without preload axe asks for no style sheets of its own; they would count as the requests of the page.
AXE = {"resultTypes": ["violations"], "preload": False}
LOOK = (Path(__file__).parent / "look.js").read_text()
SERVED = [Form(width, height, scheme) for width, height in ((1280, 900), (390, 844)) for scheme in ("light", "dark")]
FROM_DISK = Form(1280, 900, "light", from_disk=True)


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; yields "http://127.0.0.1:PORT"."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the browser may hang up
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def look_at(context: BrowserContext, home: str, name: str, form: Form, into: Checked) -> None:
    """Open one page in one form, and add what was seen to `into`."""
    wrong: list[str] = []
    page = context.new_page()
    requests = watch(page, home, wrong)
    try:
        page.goto(f"{home}/{name}", wait_until="networkidle", timeout=PATIENCE)
        facts = page.evaluate(LOOK)
        wrong += judge(facts, form)
        if not form.from_disk:
            wrong += judge_axe(Axe().run(page, options=AXE).response["violations"])
            into.links, into.ids = facts["links"], facts["ids"]
        into.figures = sum(image["figure"] for image in facts["images"])
        into.formulas = facts["math"]["formulas"]
    except PlaywrightError as error:
        wrong.append(f"can't be checked: {error.message.splitlines()[0]}")
    page.close()
    into.forms += 1
    into.requests += len(requests)
    into.findings += [Finding(name, str(form), what) for what in wrong]


def search(context: BrowserContext, home: str, form: Form) -> list[Finding]:
    """Search the book as a reader would: the word must be found, and be on the page that is found first."""
    page = context.new_page()
    wrong: list[str] = []
    heard: list[str] = []
    watch(page, home, heard)
    try:
        page.goto(f"{home}/search.html", wait_until="load", timeout=PATIENCE)
        page.locator("input[name=q]:visible").first.fill(SEARCHED)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: f"q={SEARCHED}" in url, timeout=PATIENCE)
        result = page.locator("#search-results li a").first
        result.wait_for()
        wrong += heard  # what the page that is found has to say is heard where that page is looked at
        result.click()
        page.wait_for_url(lambda url: "search.html" not in url, timeout=PATIENCE)
        if SEARCHED not in page.locator("body").inner_text().lower():
            wrong.append(f"the first result, {page.url.removeprefix(home)}, does not hold the word")
    except PlaywrightError as error:
        wrong.append(f"can't be searched: {error.message.splitlines()[0]}")
    page.close()
    return [Finding("search.html", f'searching "{SEARCHED}" {form}', what) for what in wrong]


def front(context: BrowserContext, home: str, pages: list[str], form: Form) -> list[Finding]:
    """The address of the whole site leads to one of its pages."""
    page = context.new_page()
    try:
        page.goto(f"{home}/index.html", wait_until="commit", timeout=PATIENCE)
        page.wait_for_url(lambda url: unquote(url).removeprefix(home + "/") in pages, timeout=PATIENCE)
    except PlaywrightError as error:
        return [Finding("index.html", str(form), f"leads to no page: {error.message.splitlines()[0]}")]
    finally:
        page.close()
    return []


def check_pages(browser: Browser, site: Path, say: Callable[[str], None] = print) -> dict[str, Checked]:
    """Look at every page of a built site in every form.

    Args:
        browser: a running browser.
        site: the built site.
        say: takes the lines that tell how far it is.

    Returns:
        What was looked at and found, by page.

    Raises:
        UserError: the folder holds no built book.
    """
    site = site.resolve()
    pages = built_pages(site)
    checked = {name: Checked() for name in pages}
    with served(site) as address:
        homes = {form: site.as_uri() if form.from_disk else address for form in [*SERVED, FROM_DISK]}
        contexts = {form: opened(browser, home, form) for form, home in homes.items()}
        for number, name in enumerate(pages, start=1):
            for form, context in contexts.items():
                look_at(context, homes[form], name, form, checked[name])
            say(f"[{number}/{len(pages)}] {name}: {len(merged(checked[name].findings)) or 'no'} findings")
        for form in (SERVED[0], FROM_DISK):
            checked["search.html"].findings += search(contexts[form], homes[form], form)
            checked[pages[0]].findings += front(contexts[form], homes[form], pages, form)
        for context in contexts.values():
            context.close()
    for finding in judge_links(checked, site):
        checked[finding.page].findings.append(finding)
    return checked
