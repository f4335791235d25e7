"""How likely the separator is after the sentences of TinyStories: runs/endings.

    python scripts/endings.py CORPUS

CORPUS is a prepared corpus; the first stories of the reporting half of its validation text are taken, if they fit into
the context. Some minutes; no text is recorded.
"""

import argparse
import itertools

import numpy as np
from tqdm import tqdm

from nlm_core import NLM, UserError, load_checkpoint
from nlm_core.data import Corpus
from nlm_core.errors import one_line_errors
from nlm_core.files import project_root
from nlm_core.records import write_record
from nlm_core.repetition import endings
from nlm_core.source import text_to_score

STORIES = 200


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    corpus = parser.parse_args(words).corpus
    checkpoint = load_checkpoint(project_root() / "checkpoints" / "nlm")
    model = NLM.from_params(checkpoint["config"], checkpoint["params"])
    stories = text_to_score(corpus, "report", checkpoint["tokenizer"]).stories
    each = (endings(model, checkpoint["tokenizer"], story) for story in stories)
    # A story of one sentence has no other sentence ends.
    usable = (found for found in each if found is not None and len(found.elsewhere))
    found = list(tqdm(itertools.islice(usable, STORIES), total=STORIES, unit="story", disable=None))
    if not found:
        raise UserError(
            f"no story of {corpus!r} ends with a sentence, a newline and the separator, and fits the context"
        )
    write_record(
        project_root() / "runs" / "endings",
        command=["python", "scripts/endings.py", corpus],
        checkpoint=checkpoint["sha256"],
        data={
            "scored": f"the first {len(found)} usable stories of the reporting half",
            "report": Corpus.open(corpus).manifest["maps"]["report"],
        },
        units={
            "at the end": np.array([one.at_end for one in found]),
            "last but one": np.array([one.before for one in found]),
            "elsewhere": np.array([one.elsewhere.mean() for one in found]),
            "other sentences": np.array([len(one.elsewhere) for one in found]),
        },
    )


if __name__ == "__main__":
    with one_line_errors():
        main()
