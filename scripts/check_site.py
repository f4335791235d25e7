"""Check what readers see: every page of the built book in a real browser, and a notebook in a real Jupyter Lab.

    make check-site

Exits with 0 if all is well, with 1 and the list of all findings if not, and with 2 if it could not be checked.
"""

import argparse
import signal
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from site_check.browser import launch
from site_check.chromium import chromium
from site_check.judge import Checked, merged
from site_check.lab import check_lab
from site_check.pages import check_pages

from nlm_core import UserError

ROOT = Path(__file__).resolve().parent.parent


def table(checked: dict[str, Checked]) -> str:
    """What was looked at, a line a page."""
    rows = [("page", "forms", "figures", "formulas", "requests", "findings")]
    rows += [
        (name, of.forms, of.figures, of.formulas, of.requests, len(merged(of.findings))) for name, of in checked.items()
    ]
    sums = [sum(numbers) for numbers in list(zip(*rows[1:], strict=True))[1:]]
    rows.append((f"{len(checked)} pages", *sums))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{row[0]:{width}}" + "".join(f"{value:>10}" for value in row[1:]) for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=ROOT / "_build" / "html", help="the built book")
    parser.add_argument("--notebook", type=Path, default=ROOT / "book" / "03-positional-encodings.ipynb")
    parser.add_argument("--only", choices=["pages", "lab"], help="check one part")
    options = parser.parse_args(arguments)
    # So that an ended check ends its browser and its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    findings, say = [], lambda line: print(line, flush=True)
    try:
        executable = chromium()
        with sync_playwright() as playwright:
            browser = launch(playwright, executable)
            say(f"Checking with {executable}, version {browser.version}.")
            if options.only != "lab":
                checked = check_pages(browser, options.site, say)
                findings += [finding for of in checked.values() for finding in of.findings]
                say(table(checked))
            if options.only != "pages":
                findings += check_lab(browser, options.notebook, ROOT, say)
            browser.close()
    except UserError as error:
        print(f"check-site: {error}", file=sys.stderr)
        return 2
    lines = merged(findings)
    say("\n".join([f"{len(lines)} findings:", *lines]) if lines else "No findings.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
