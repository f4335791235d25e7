"""A notebook in a real Jupyter Lab: opened, run to its end by the menu, and saved, in a copy of its folder."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as PlaywrightError

from nlm_core import UserError
from site_check.browser import PATIENCE, opened, watch
from site_check.judge import Finding, Form
from site_check.notebook import code_cells, errors, judge_run, output_kinds, without_outputs

# Seconds for the server to start or stop, and for the notebook to run.
START, STOP, RUN = 180, 60, 900
WIDE = Form(1280, 900, "light")


@dataclass
class Lab:
    """A running server: where it is, and how to ask it."""

    address: str
    token: str

    def ask(self, path: str) -> Any:
        """What the server answers to a GET of `path`; raises OSError if it does not."""
        request = urllib.request.Request(self.address + path)
        request.add_header("Authorization", f"token {self.token}")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")


def wait_for(done: Callable[[], Any], seconds: float, pause: Callable[[float], None] = time.sleep) -> bool:
    """Ask again and again; returns whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        pause(0.5)
    return True


@contextmanager
def running_lab(folder: Path, own: Path, root: Path, findings: list[str]) -> Iterator[Lab]:
    """Run Jupyter Lab on a free port.

    Args:
        folder: what Lab shows.
        own: an empty folder for its settings, so that nothing of the user's is read or written.
        root: the project, where notebooks find checkpoints and data.
        findings: takes what went wrong on stopping.

    Raises:
        UserError: the server does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Else Lab asks whether it may fetch news.
    news = own / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    environment = {name: value for name, value in os.environ.items() if name != "NLM_CHECKPOINT"} | {
        "NLM_ROOT": str(root),
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        **{f"JUPYTER_{kind}_DIR": str(own / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")},
    }
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16))
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": lab.token,
        "LabApp.extension_manager": "readonly",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    log = own / "lab.log"
    with open(log, "w") as out:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True)

    def answers() -> bool:
        try:
            return server.poll() is not None or bool(lab.ask("/api/status"))
        except OSError:
            return False

    try:
        if not wait_for(answers, START) or server.poll() is not None:
            last = (log.read_text().splitlines() or ["it says nothing"])[-1]
            raise UserError(f"Jupyter Lab does not start: {last}")
        yield lab
    finally:
        findings += stop(server)


def stop(server: subprocess.Popen) -> list[str]:
    """Stop a server and all that it started; returns what did not stop by itself."""
    if server.poll() is not None:
        return []
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    server.terminate()
    _, left = psutil.wait_procs(family, timeout=STOP)
    for process in left:
        process.kill()
    server.wait()
    return [f"process {process.pid} had to be killed" for process in left]


def open_and_run(page: Page, lab: Lab, notebook: Path) -> None:
    """Open a notebook, run all its cells by the menu, and save until the file holds the whole run."""
    page.goto(f"{lab.address}/lab/tree/{notebook.name}?token={lab.token}", timeout=PATIENCE)
    page.locator(".jp-NotebookPanel .jp-Notebook").wait_for()

    def pause(seconds: float) -> None:
        page.wait_for_timeout(seconds * 1000)  # unlike time.sleep it lets the page's events through

    def is_idle() -> bool:
        kernels = lab.ask("/api/kernels")
        return [(one["execution_state"], one["connections"] > 0) for one in kernels] == [("idle", True)]

    # What is run before the page is connected to its kernel is lost.
    wait_for(is_idle, START, pause)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.locator(".lm-MenuBar-item", has_text="Run").click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def is_saved() -> bool:
        if not is_idle():
            return False
        page.keyboard.press("ControlOrMeta+s")
        code = code_cells(json.loads(notebook.read_text(encoding="utf-8")))
        # An error ends the run: the cells after it get no count.
        return any(errors(cell) for cell in code) or all(cell["execution_count"] for cell in code)

    wait_for(is_saved, RUN, pause)


def look_at_images(page: Page, notebook: dict[str, Any]) -> list[str]:
    """Scroll to every image that the run made; returns those that Lab does not show."""
    wrong = []
    cells = page.locator(".jp-Notebook .jp-Cell")
    for number, cell in enumerate(notebook["cells"]):
        if "image/png" in output_kinds(cell):
            cells.nth(number).scroll_into_view_if_needed()
            image = cells.nth(number).locator(".jp-OutputArea img").first
            try:
                image.wait_for()
                if not image.evaluate("async (image) => { await image.decode(); return image.naturalWidth }"):
                    raise PlaywrightError("it is empty")
            except PlaywrightError as error:
                wrong.append(f"the image of cell {number + 1} is not shown: {error.message.splitlines()[0]}")
    return wrong


def shut_down_kernel(page: Page, lab: Lab) -> list[str]:
    """Shut the kernel down by the menu; returns what went wrong."""
    page.locator(".lm-MenuBar-item", has_text="Kernel").click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    gone = wait_for(lambda: lab.ask("/api/kernels") == [], STOP, lambda seconds: page.wait_for_timeout(seconds * 1000))
    return [] if gone else ["the kernel does not shut down"]


def check_lab(browser: Browser, notebook: Path, root: Path, say: Callable[[str], None] = print) -> list[Finding]:
    """Run a notebook to its end in Jupyter Lab, in a temporary copy of its folder.

    Args:
        browser: a running browser.
        notebook: an executed notebook.
        root: the project, where the notebook finds checkpoints and data.
        say: takes the lines that tell how far it is.

    Raises:
        UserError: there is no such notebook, or Lab does not start.
    """
    if not notebook.exists():
        raise UserError(f"{notebook} does not exist")
    shipped = json.loads(notebook.read_text(encoding="utf-8"))
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        own, folder = Path(temporary) / "own", Path(temporary) / "book"
        own.mkdir()
        shutil.copytree(notebook.parent, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        copy = folder / notebook.name
        copy.write_text(json.dumps(without_outputs(shipped)), encoding="utf-8")
        say(f"[lab] {notebook.name}: opening it in Jupyter Lab")
        with running_lab(folder, own, root, wrong) as lab:
            context = opened(browser, lab.address, WIDE)
            page = context.new_page()
            heard: list[str] = []
            watch(page, lab.address, heard)
            try:
                open_and_run(page, lab, copy)
                saved = json.loads(copy.read_text(encoding="utf-8"))
                wrong += judge_run(shipped, saved)
                wrong += look_at_images(page, saved)
                wrong += shut_down_kernel(page, lab)
            except (PlaywrightError, OSError) as error:
                wrong.append(f"can't be run: {str(error).splitlines()[0]}")
            context.close()
    for line in dict.fromkeys(heard):
        say(f"[lab] no finding, but worth knowing: {line}")
    say(f"[lab] {notebook.name}: {len(code_cells(shipped))} code cells, {len(wrong) or 'no'} findings")
    return [Finding(notebook.name, "Jupyter Lab", what) for what in wrong]
