"""A Chromium or Chrome of this machine: found, or installed by Debian's package manager."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from nlm_core import UserError

NAMES = ["chromium", "google-chrome", "google-chrome-stable", "chromium-browser"]
MAC = ["Chromium.app/Contents/MacOS/Chromium", "Google Chrome.app/Contents/MacOS/Google Chrome"]


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine, or None."""
    on_path = [found for name in NAMES if (found := shutil.which(name))]
    folders = [Path("/Applications"), Path.home() / "Applications"] if platform.system() == "Darwin" else []
    in_apps = [str(folder / name) for folder in folders for name in MAC if (folder / name).exists()]
    return next(iter(on_path + in_apps), None)


def chromium() -> str:
    """The path of a Chromium, which Debian's package manager installs if need be and if it may.

    Raises:
        UserError: there is none, and it can't be installed from here.
    """
    if found := find_chromium():
        return found
    wanted = "no Chromium found; install Chromium or Google Chrome (on Debian: sudo apt-get install chromium)"
    if not shutil.which("apt-get"):
        raise UserError(wanted)
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (not shutil.which("sudo") or subprocess.run([*sudo, "true"], capture_output=True).returncode):
        raise UserError(wanted)
    print("Installing Chromium with apt-get.", flush=True)
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        done = subprocess.run(
            [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *words], capture_output=True, text=True
        )
        if done.returncode:
            print(done.stderr.strip())
    if not (found := find_chromium()):
        raise UserError(f"apt-get could not install Chromium: {wanted}")
    return found
