"""What counts as a good run of a notebook; nothing here needs Jupyter Lab or a browser."""

import copy
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are run: code cells with something in them."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]


def without_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """A copy of a notebook that was never run, so that all that it holds after a run comes from that run."""
    bare = copy.deepcopy(notebook)
    for cell in bare["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return bare


def output_kinds(cell: dict[str, Any]) -> set[str]:
    """What a cell shows: MIME types, "stdout", "stderr", "error"."""
    kinds = set()
    for output in cell.get("outputs", []):
        kinds |= set(output.get("data", {})) or {output.get("name", output["output_type"])}
    return kinds


def errors(cell: dict[str, Any]) -> list[str]:
    """What a cell raised, where its tags do not say that it should."""
    if "raises-exception" in cell["metadata"].get("tags", []):
        return []
    outputs = [output for output in cell["outputs"] if output["output_type"] == "error"]
    return [f"{output['ename']}: {output['evalue'][:200]}" for output in outputs]


def judge_run(shipped: dict[str, Any], saved: dict[str, Any]) -> list[str]:
    """What is wrong with a notebook after a run.

    Args:
        shipped: the executed notebook as it is in the book.
        saved: the same notebook, run anew and saved.
    """
    wrong = []
    before, after = code_cells(shipped), code_cells(saved)
    if len(before) != len(after):
        return [f"{len(after)} code cells were saved of {len(before)}"]
    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        name = f"code cell {number}"
        if raised := errors(new):
            # It ends the run: nothing is to be said of the cells after it.
            wrong += [f"{name} raises {error}; none of the {len(after) - number} after it was run" for error in raised]
            break
        if new["execution_count"] != number:
            wrong.append(f"{name} has the execution count {new['execution_count']}")
        kinds = output_kinds(new)
        if "stderr" in kinds:
            wrong.append(f"{name} writes to stderr")
        if missing := output_kinds(old) - kinds:
            wrong.append(f"{name} shows no {', '.join(sorted(missing))}, as it does in the book")
    if not any(cell["outputs"] for cell in after):
        wrong.append("no cell shows anything")
    return wrong
