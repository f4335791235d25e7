"""Measure nlm beside its peers, write benchmarks/results.json, and print the table.

    python -m benchmarks.run                         all but growth (`make bench`)
    python -m benchmarks.run generation scoring      some of them
    python -m benchmarks.run growth                  how ours grows (`make bench-growth`)
    python -m benchmarks.run --quick                 all of the code on a tiny model; the figures mean nothing
    python -m benchmarks.run --show                  the table of all that was measured before
    python -m benchmarks.run --markdown              the README's table, to be put there

Each family of rows runs in a process of its own, with the same threads and allocator settings for both sides. A run of
some rows keeps the others' results if they were measured in the same environment; else those are dropped.
"""

import argparse
import datetime
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.machine import ROOT, code_hash, commit, describe, environment_of_children, physical_cores
from benchmarks.measure import say
from benchmarks.peers import require
from benchmarks.tables import markdown, tables
from nlm_core.errors import UserError, one_line_errors
from nlm_core.files import read_json, shown, write_json

COMPARISONS = ("training", "generation", "scoring", "ablation")
PEERS = {family: "transformer_lens" if family == "ablation" else "transformers" for family in COMPARISONS}
BENCH = (*COMPARISONS, "roofline", "fast_paths")
FAMILIES = (*BENCH, "growth")
RESULTS = ROOT / "benchmarks" / "results.json"


def run_family(family: str, quick: bool, threads: int) -> dict[str, Any]:
    """Measure a family's rows in a new process; return its environment and its rows.

    Raises:
        UserError: it failed; what it said stands on standard error already.
    """
    with tempfile.TemporaryDirectory(prefix="nlm-bench-") as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.run", family, "--child", str(out)] + ["--quick"] * quick
        code = subprocess.run(command, cwd=ROOT, env=environment_of_children(threads)).returncode
        if code:
            raise UserError(f"the rows of {family} were not measured (exit code {code}); the others so far are kept")
        return read_json(out)


def child(family: str, quick: bool, out: Path) -> None:
    if family in PEERS:
        require(PEERS[family])
    inputs = Inputs.quick() if quick else Inputs()
    rows = importlib.import_module(f"benchmarks.{family}").measure(inputs)
    made = {"measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "code": code_hash()}
    made["commit"] = commit()
    for row in rows:
        if quick and "verdict" in row:
            row["verdict"] = "none"
    write_json(out, {"environment": describe(), "rows": {row["row"]: row | made for row in rows}})


def merged(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The results with new rows in the place of old ones; rows of another environment are dropped."""
    kept = before["rows"] if before.get("environment") == new["environment"] else {}
    if dropped := len(before.get("rows", {})) - len(kept):
        say(f"{dropped} rows of another environment are dropped: run them again")
    return {"environment": new["environment"], "rows": kept | new["rows"]}


def results_before(path: Path) -> dict[str, Any]:
    """Read results.json.

    Raises:
        UserError: the file is missing or is something else.
    """
    results = read_json(path)
    if not all(isinstance(results.get(part), dict) for part in ("environment", "rows")):
        raise UserError(f"{shown(path)} holds no results of benchmarks; move it away, or give another --results")
    return results


def require_writable(path: Path) -> None:
    """Raise an OSError or a UserError where a file can't be written."""
    if path.is_dir():
        raise UserError(f"{shown(path)} is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of: {', '.join(FAMILIES)}")
    parser.add_argument("--quick", action="store_true", help="a tiny model and two rounds; writes no results.json")
    parser.add_argument("--show", action="store_true", help="measure nothing; print what was measured before")
    parser.add_argument("--markdown", action="store_true", help="as --show, but only the README's table")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of both sides [the physical cores]")
    parser.add_argument("--results", type=Path, help="where to write [benchmarks/results.json, or nowhere if --quick]")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    families = arguments.families or list(BENCH)
    if unknown := set(families) - set(FAMILIES):
        raise UserError(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(FAMILIES)}")
    if arguments.threads < 1:
        raise UserError(f"--threads must be 1 or more, not {arguments.threads}")
    if arguments.child:
        child(families[0], arguments.quick, arguments.child)
        return
    path = arguments.results or (None if arguments.quick else RESULTS)
    if arguments.show or arguments.markdown:
        if arguments.families or arguments.quick:
            raise UserError("what was measured before is shown as a whole: leave out the families and --quick")
        print((markdown if arguments.markdown else tables)(results_before(path)))
        return
    results = results_before(path) if path and path.exists() else {}
    if path:
        require_writable(path)  # now, and not after an hour
    for peer in sorted({PEERS[family] for family in families if family in PEERS}):
        require(peer)
    for family in families:
        results = merged(results, run_family(family, arguments.quick, arguments.threads))
        if path:
            write_json(path, results)
    if arguments.quick:
        print("A tiny model and two rounds: the code ran, and the figures mean nothing.\n")
    print(tables(results))
    if path:
        print(f"\nWritten to {shown(path)}.")


if __name__ == "__main__":
    with one_line_errors():
        main()
