"""The check of the site: what it judges, how it finds a browser, and that planted defects are found in a real one."""

import importlib.util
import json
import subprocess
import sys

import pytest
from conftest import ROOT

from nlm_core import UserError

sys.path.insert(0, str(ROOT / "scripts"))
from site_check import chromium
from site_check.judge import (
    Checked,
    Finding,
    Form,
    built_pages,
    is_foreign,
    judge,
    judge_axe,
    judge_images,
    judge_links,
    merged,
)
from site_check.notebook import judge_run, without_outputs

LIGHT = Form(1280, 900, "light")
IMAGE = {"src": "a/b.png", "alt": "A line", "loaded": True, "seen": True, "figure": True, "paired": False}
FACTS = {
    "themed": True,
    "theme": "light",
    "width": {"content": 1280, "window": 1280, "sticking": []},
    "images": [IMAGE],
    "math": {"formulas": 1, "unrendered": [], "errors": [], "raw": []},
}


def write_site(folder, pages, docnames):
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "searchindex.js").write_text(f"Search.setIndex({json.dumps({'docnames': docnames})})")


def test_pages_are_those_of_the_table_of_contents(tmp_path):
    with pytest.raises(UserError, match="make book"):
        built_pages(tmp_path)
    head = '<link rel="index" href="genindex.html">'
    write_site(tmp_path, {"book/a.html": head, "book/gone.html": "", "genindex.html": head}, ["book/a", "b"])
    assert built_pages(tmp_path) == ["book/a.html", "b.html", "search.html"]
    (tmp_path / "b.html").write_text('<a class="x" href="genindex.html">Index</a>')
    (tmp_path / "404.html").touch()
    assert built_pages(tmp_path) == ["book/a.html", "b.html", "search.html", "404.html", "genindex.html"]


@pytest.mark.parametrize(
    ("url", "home", "foreign"),
    [
        ("http://127.0.0.1:80/a.png", "http://127.0.0.1:80", False),
        ("http://127.0.0.1:80", "http://127.0.0.1:80", False),
        ("data:image/png;base64,AA", "http://127.0.0.1:80", False),
        ("http://127.0.0.1:8080/a.png", "http://127.0.0.1:80", True),
        ("https://127.0.0.1:80/a.png", "http://127.0.0.1:80", True),
        ("https://unpkg.com/x.js", "http://127.0.0.1:80", True),
        ("file:///a%20b(1)/_build/x.css", "file:///a%20b%281%29/_build", False),
        ("file:///a/other/x.css", "file:///a/book", True),
        ("http://127.0.0.1:80/a.png", "file:///a/book", True),
    ],
)
def test_foreign_requests(url, home, foreign):
    assert is_foreign(url, home) is foreign


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"loaded": False}, ["image a/b.png does not load"]),
        ({"alt": " "}, ["image a/b.png has no alt text"]),
        ({"alt": None}, ["image a/b.png has no alt text"]),
        ({"alt": "../_images/b.png"}, ["image a/b.png has a file name for an alt text"]),
        ({"alt": "What b.png shows"}, []),
        ({"seen": False}, ["image a/b.png can't be seen"]),
        ({"seen": False, "paired": True}, []),
        ({"alt": "", "seen": False, "figure": False}, []),
        ({"loaded": False, "figure": False}, ["image a/b.png does not load"]),
    ],
)
def test_images(change, wrong):
    assert judge_images([IMAGE | change]) == wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"theme": "dark"}, ["the theme is dark, not light"]),
        ({"theme": None}, ["the theme is None, not light"]),
        ({"theme": None, "themed": False}, []),
        ({"width": {"content": 1281, "window": 1280, "sticking": []}}, []),
        (
            {"width": {"content": 1400, "window": 1280, "sticking": ["table.x to 1400"]}},
            ["scrolls sideways: 1400 px in 1280 px; sticks out: table.x to 1400"],
        ),
        (
            {"math": {"formulas": 1, "unrendered": ["x^2"], "errors": ["Undefined control"], "raw": ["$$y$$"]}},
            ["a formula is not rendered: x^2", "MathJax reports: Undefined control", "raw TeX in the text: $$y$$"],
        ),
    ],
)
def test_facts(change, wrong):
    assert judge(FACTS | change, LIGHT) == wrong


def test_only_serious_violations_count():
    node = {"target": ["#a", "b"], "failureSummary": "Fix it:\n  now"}
    found = [{"impact": impact, "id": "rule", "help": "Help", "nodes": [node, node]} for impact in ("minor", "serious")]
    assert judge_axe(found) == ["axe, serious, rule: Help: #a b: Fix it: now"] * 2


def test_links_must_lead_somewhere(tmp_path):
    write_site(tmp_path, {"book/a.html": "", "b.html": "", "c/index.html": "", "x.ipynb": ""}, [])
    good = ["/book/a.html", "/b.html#place", "/b.html#", "/c", "/x.ipynb#L1"]
    checked = {"book/a.html": Checked(links=good), "b.html": Checked(ids=["place"])}
    assert judge_links(checked, tmp_path) == []
    checked["b.html"].links = ["/b.html#elsewhere", "/gone.html"]
    assert [finding.what for finding in judge_links(checked, tmp_path)] == [
        "a link to /b.html#elsewhere, where b.html has no such place",
        "a link to /gone.html, which does not exist",
    ]


def test_findings_are_told_once_with_their_forms():
    findings = [
        Finding("a", "wide", "x"),
        Finding("a", "narrow", "x"),
        Finding("a", "wide", "x"),
        Finding("b", "w", "x"),
    ]
    assert merged(findings) == ["a (wide, narrow): x", "b (w): x"]


def code(source, outputs=(), count=None, tags=()):
    return {
        "cell_type": "code",
        "source": source,
        "outputs": list(outputs),
        "execution_count": count,
        "metadata": {"tags": list(tags)},
    }


STREAM = {"output_type": "stream", "name": "stdout", "text": "a"}
PICTURE = {"output_type": "display_data", "data": {"image/png": "AA"}}
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no"}


def test_a_good_run_has_no_findings():
    cells = [{"cell_type": "markdown", "source": "# A"}, code("print('a')", [STREAM], 1), code(""), code("f()", (), 2)]
    assert judge_run({"cells": cells}, {"cells": cells}) == []
    bare = without_outputs({"cells": cells})
    assert bare["cells"][1] == code("print('a')")
    assert cells[1]["outputs"]


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        (code("plot()", [PICTURE]), "code cell 2 has the execution count None"),
        (code("plot()", [], 2), "code cell 2 shows no image/png, as it does in the book"),
        (code("plot()", [PICTURE, ERROR], 2), "code cell 2 raises ValueError: no; none of the 0 after it was run"),
        (code("plot()", [PICTURE, STREAM | {"name": "stderr"}], 2), "code cell 2 writes to stderr"),
        (code("plot()", [PICTURE, ERROR], 2, ["raises-exception"]), None),
    ],
)
def test_a_bad_run_is_told(cell, wrong):
    first = code("print('a')", [STREAM], 1)
    shipped, saved = [first, code("plot()", [PICTURE], 2)], [first, cell]
    assert judge_run({"cells": shipped}, {"cells": saved}) == ([wrong] if wrong else [])


def test_a_run_that_shows_nothing_or_loses_cells_is_told():
    cells = [code("x = 1", (), 1)]
    assert judge_run({"cells": cells}, {"cells": cells}) == ["no cell shows anything"]
    assert judge_run({"cells": cells * 2}, {"cells": cells}) == ["1 code cells were saved of 2"]


def fake_machine(monkeypatch, programs, apt_works=True, user=0):
    """A machine with these programs, where apt-get installs Chromium or fails; returns the commands that are run."""
    programs, commands = set(programs), []

    def run(command, **_):
        commands.append(command)
        if "install" in command and apt_works:
            programs.add("chromium")
        return subprocess.CompletedProcess(command, 0 if apt_works else 100, stdout="", stderr="E: no such package")

    monkeypatch.setattr(chromium.platform, "system", lambda: "Linux")
    monkeypatch.setattr(chromium.shutil, "which", lambda name: f"/bin/{name}" if name in programs else None)
    monkeypatch.setattr(chromium.subprocess, "run", run)
    monkeypatch.setattr(chromium.os, "geteuid", lambda: user)
    return commands


def test_a_browser_that_is_there_is_taken(monkeypatch):
    commands = fake_machine(monkeypatch, ["google-chrome", "apt-get"])
    assert chromium.chromium() == "/bin/google-chrome"
    assert commands == []


def test_a_missing_browser_is_installed(monkeypatch, capsys):
    commands = fake_machine(monkeypatch, ["apt-get"])
    assert chromium.chromium() == "/bin/chromium"
    assert [command[-1] for command in commands] == ["-qq", "chromium"]
    commands = fake_machine(monkeypatch, ["apt-get", "sudo"], user=1000)
    assert chromium.chromium() == "/bin/chromium"
    assert all(command[:2] == ["sudo", "-n"] for command in commands)
    assert "Installing Chromium" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("programs", "user", "asked"),
    [(["apt-get"], 0, 2), (["apt-get", "sudo"], 1000, 1), (["apt-get"], 1000, 0), ([], 0, 0)],
)
def test_a_browser_that_cannot_be_installed_is_named(monkeypatch, programs, user, asked):
    commands = fake_machine(monkeypatch, programs, apt_works=False, user=user)
    with pytest.raises(UserError, match="install Chromium or Google Chrome"):
        chromium.chromium()
    assert len(commands) == asked


BAD = """<!doctype html>
<html lang="en" data-content_root="./"><head><meta charset="utf-8"><title>Bad</title>
<script>document.documentElement.dataset.theme = localStorage.getItem("theme")</script>
<style>body { margin: 0; background: white; color: black } [data-theme=dark] #pale { color: #ccc }</style></head>
<body><main><article><h1>The norm</h1>
<p id="pale">Pale in the dark.</p>
<p>Costs $x^2$ and <code>$y^2$</code>.</p>
<img src="here.svg"><img src="here.svg" alt="_images/here.svg"><img src="here.svg" alt="Hidden" style="display: none">
<img src="gone.png" alt="Gone"><img src="http://example.com/far.png" alt="Far">
<table style="width: 700px"><tr><td>wide</td></tr></table>
<a href="nowhere.html">nowhere</a> <a href="#noplace">noplace</a>
<script>console.error("said"); setTimeout(() => { throw new Error("thrown") })</script>
</article></main></body></html>"""
SEARCH = """<!doctype html>
<html lang="en" data-content_root="./"><head><meta charset="utf-8"><title>Search</title>
<script>document.documentElement.dataset.theme = localStorage.getItem("theme")</script></head>
<body style="background: white; color: black"><main><h1>Search</h1>
<form><label>Word <input name="q"></label></form><ul id="search-results"></ul>
<script>
if (location.search) document.querySelector("ul").innerHTML = '<li><a href="bad.html" style="color: #00c">Bad</a></li>';
</script></main></body></html>"""


def test_planted_defects_are_found(tmp_path):
    if importlib.util.find_spec("playwright") is None or importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip('the extra "site" is not installed: make check-site installs it')
    if not (executable := chromium.find_chromium()):
        pytest.skip("no Chromium on this machine: make check-site installs it")
    from playwright.sync_api import sync_playwright
    from site_check.browser import launch
    from site_check.pages import check_pages

    circle = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="9"/></svg>'
    front = '<meta http-equiv="Refresh" content="0; url=bad.html">'
    pages = {"bad.html": BAD, "search.html": SEARCH, "index.html": front, "here.svg": circle}
    write_site(tmp_path, pages, ["bad"])
    lines = []
    with sync_playwright() as playwright:
        browser = launch(playwright, executable)
        checked = check_pages(browser, tmp_path, lines.append)
        browser.close()

    served = {
        str(Form(width, height, scheme)) for width, height in ((1280, 900), (390, 844)) for scheme in ("light", "dark")
    }
    everywhere, dark = served | {"from disk"}, {form for form in served if "dark" in form}
    narrow = {form for form in served if "390" in form}
    expected = {
        "axe, serious, color-contrast": dark,
        "axe, critical, image-alt": served,
        "raw TeX in the text: $x^2$": everywhere,
        "image here.svg has no alt text": everywhere,
        "image here.svg has a file name": everywhere,
        "image here.svg can't be seen": everywhere,
        "image gone.png does not load": everywhere,
        "image http://example.com/far.png does not load": everywhere,
        "asks another host: http://example.com/far.png": everywhere,
        "a request fails: /gone.png": everywhere,
        "scrolls sideways: 700 px in 390 px; sticks out: table to 700": narrow,
        "console error: said": everywhere,
        "script error: thrown": everywhere,
        "a link to /nowhere.html, which does not exist": {"links"},
        "a link to /bad.html#noplace, where": {"links"},
    }
    found = checked["bad.html"].findings
    for beginning, forms in expected.items():
        assert {finding.form for finding in found if finding.what.startswith(beginning)} == forms, beginning
    assert not [finding for finding in found if not finding.what.startswith(tuple(expected))]
    # The other page is sound, and searching leads from it to the first.
    assert checked["search.html"].findings == []
    assert (checked["bad.html"].forms, checked["bad.html"].figures) == (5, 5)
    assert len(lines) == 2
