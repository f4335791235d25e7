"""What counts as wrong on a page; nothing here needs a browser."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from nlm_core import UserError


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: on which page, in which form, and what."""

    page: str
    form: str
    what: str


@dataclass(frozen=True)
class Form:
    """How a page is looked at."""

    width: int
    height: int
    scheme: str
    from_disk: bool = False

    def __str__(self) -> str:
        return "from disk" if self.from_disk else f"{self.width}x{self.height} {self.scheme}"


@dataclass
class Checked:
    """What was looked at on one page, over all its forms."""

    forms: int = 0
    figures: int = 0
    formulas: int = 0
    requests: int = 0
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def built_pages(site: Path) -> list[str]:
    """The pages of the table of contents, as the built search index names them, and those that Sphinx adds.

    Raises:
        UserError: the folder holds no built book.
    """
    index = site / "searchindex.js"
    if not index.exists():
        raise UserError(f"{site} holds no built book; run: make book")
    text = index.read_text(encoding="utf-8")
    names = json.loads(text[text.index("(") + 1 : text.rindex(")")])["docnames"]
    pages = [f"{name}.html" for name in names] + ["search.html"]
    # The 404 page lies at the top only where the site is published.
    pages += [name for name in ("404.html", "_static/404.html") if (site / name).exists() and name not in pages]
    linked = re.compile(r'<a [^>]*href="[^"]*genindex\.html')
    if any(linked.search((site / page).read_text(encoding="utf-8")) for page in pages if (site / page).exists()):
        pages.append("genindex.html")
    return pages


def is_foreign(url: str, home: str) -> bool:
    """Whether a request leaves `home`: "http://127.0.0.1:PORT" of a served site, "file:///FOLDER" of one on disk."""
    if urlsplit(url).scheme in {"data", "blob", "about"}:
        return False
    return not unquote(url + "/").startswith(unquote(home) + "/")


def judge_images(images: list[dict[str, Any]]) -> list[str]:
    """What is wrong with a page's images. Those outside the article are the theme's: axe judges their alt texts."""
    wrong = []
    for image in images:
        name, alt = f"image {(image['src'] or '')[:80]}", (image["alt"] or "").strip()
        if not image["loaded"]:
            wrong.append(f"{name} does not load")
        if not image["figure"]:
            continue
        if not alt:
            wrong.append(f"{name} has no alt text")
        elif re.fullmatch(r"\S+\.(png|svg|jpe?g|gif|webp)", alt):
            wrong.append(f"{name} has a file name for an alt text")
        if image["loaded"] and not image["seen"] and not image["paired"]:
            wrong.append(f"{name} can't be seen")
    return wrong


def judge(facts: dict[str, Any], form: Form) -> list[str]:
    """What is wrong on a page, from the facts that look.js collects."""
    wrong = judge_images(facts["images"])
    if facts["themed"] and facts["theme"] != form.scheme:
        wrong.append(f"the theme is {facts['theme']}, not {form.scheme}")
    width = facts["width"]
    if width["content"] > width["window"] + 1:
        sticking = ", ".join(width["sticking"]) or "no single element"
        wrong.append(f"scrolls sideways: {width['content']} px in {width['window']} px; sticks out: {sticking}")
    math = facts["math"]
    wrong += [f"a formula is not rendered: {one}" for one in math["unrendered"]]
    wrong += [f"MathJax reports: {one}" for one in math["errors"]]
    wrong += [f"raw TeX in the text: {one}" for one in math["raw"]]
    return wrong


def judge_axe(violations: list[dict[str, Any]]) -> list[str]:
    """The serious and critical ones among axe's violations, one line an element."""
    return [
        f"axe, {one['impact']}, {one['id']}: {one['help']}: "
        f"{' '.join(str(part) for part in node['target'])}: {' '.join(node['failureSummary'].split())}"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def judge_links(checked: dict[str, Checked], site: Path) -> list[Finding]:
    """The links within the book that lead to no file, or to no place on their page."""
    findings = []
    for page, of_page in checked.items():
        for link in of_page.links:
            path, _, place = link.lstrip("/").partition("#")
            file = site / path / "index.html" if (site / path).is_dir() else site / path
            target = file.relative_to(site).as_posix()
            if not file.exists():
                findings.append(Finding(page, "links", f"a link to {link}, which does not exist"))
            elif place and target in checked and place not in checked[target].ids:
                findings.append(Finding(page, "links", f"a link to {link}, where {target} has no such place"))
    return findings


def merged(findings: list[Finding]) -> list[str]:
    """One line for each page and thing, with the forms in which it was found."""
    forms: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        forms.setdefault((finding.page, finding.what), []).append(finding.form)
    return [f"{page} ({', '.join(dict.fromkeys(of))}): {what}" for (page, what), of in forms.items()]
