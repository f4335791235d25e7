"""What the book's pages say in numbers and names is what the code says."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import yaml
from conftest import ROOT

from nlm_core.claims import VERDICTS
from nlm_core.config import ModelConfig
from nlm_core.tokenizer import Tokenizer

CONFIG = ModelConfig()
BLOCK = ModelConfig(n_layers=CONFIG.n_layers + 1).n_parameters - CONFIG.n_parameters
SVG = "{http://www.w3.org/2000/svg}"
DRAWING = ElementTree.parse(ROOT / "_static" / "model.svg").getroot()
INDEX = (ROOT / "book" / "index.md").read_text()
SITE = yaml.safe_load((ROOT / "_config.yml").read_text())
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]


def drawn(group: str) -> list[str]:
    """The texts of a group of the drawing, in order."""
    (found,) = [element for element in DRAWING.iter(f"{SVG}g") if element.get("id") == group]
    return [text.text for text in found.iter(f"{SVG}text")]


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})*", text)]


@pytest.mark.parametrize(
    ("group", "lines"),
    [
        ("input", [f"token ids; the model reads at most {CONFIG.context_length}"]),
        ("token-table", [f"{CONFIG.vocab_size:,} rows of {CONFIG.d_model}:"]),
        ("token-table", [f"{CONFIG.vocab_size * CONFIG.d_model:,} parameters"]),
        ("position-table", [f"{CONFIG.context_length:,} rows of {CONFIG.d_model}:"]),
        ("position-table", [f"{CONFIG.context_length * CONFIG.d_model:,} parameters"]),
        ("stream", [f"{CONFIG.d_model} numbers a token"]),
        (
            "blocks",
            [f"{CONFIG.n_layers} blocks", f"{BLOCK:,} parameters", f"{CONFIG.n_heads} heads of {CONFIG.head_size}"],
        ),
        ("blocks", [f"{CONFIG.d_model} → {4 * CONFIG.d_model:,} → {CONFIG.d_model}"]),
        ("output", [f"layer norm, {2 * CONFIG.d_model} parameters", f"{CONFIG.vocab_size:,} logits a token"]),
        ("output", [f"{CONFIG.n_parameters:,} parameters in all"]),
    ],
)
def test_the_drawing_shows_the_model(group, lines):
    assert set(lines) <= set(drawn(group))


def test_the_drawing_adds_up():
    """From its own numbers: two tables, the blocks, and the last norm."""
    (tokens,), (positions,) = numbers(drawn("token-table")[2]), numbers(drawn("position-table")[2])
    (blocks,), (each,) = numbers(drawn("blocks")[0]), numbers(drawn("blocks")[1])
    (norm,), (total,) = numbers(drawn("output")[0]), numbers(drawn("output")[-1])
    assert tokens + positions + blocks * each + norm == total


def test_the_drawing_cuts_the_text_as_the_tokenizer_does():
    tokenizer = Tokenizer.load(ROOT / "checkpoints" / "nlm" / "tokenizer.json")
    ids = tokenizer.encode(drawn("input")[0])
    assert numbers(" ".join(drawn("ids"))) == ids
    assert [piece.replace("space", " ") for piece in drawn("pieces")] == [tokenizer.decode([token]) for token in ids]


def test_the_alternative_text_has_the_numbers_of_the_drawing():
    (alternative,) = re.findall(r"\nname: fig-model\n.*\nalt: >-\n((?:  .*\n)+)", INDEX)
    shown = " ".join(text.text for text in DRAWING.iter(f"{SVG}text"))
    assert set(numbers(alternative)) == set(numbers(shown))


@pytest.mark.parametrize(
    ("page", "phrase"),
    [
        ("book/index.md", f"{CONFIG.n_layers} layers of {CONFIG.n_heads} heads"),
        ("book/index.md", f"width of {CONFIG.d_model}, a context of {CONFIG.context_length} tokens"),
        ("book/index.md", f"vocabulary of {CONFIG.vocab_size:,}: {CONFIG.n_parameters:,} parameters"),
        ("book/glossary.md", f"length ({CONFIG.context_length})"),
        ("book/glossary.md", f"({CONFIG.context_length} rows of {CONFIG.d_model})"),
        (
            "book/glossary.md",
            f"({CONFIG.n_heads}), each with its own {CONFIG.head_size} of the {CONFIG.d_model} channels",
        ),
        ("book/glossary.md", f"model knows ({CONFIG.vocab_size:,})"),
        ("README.md", f"{CONFIG.n_parameters:,} parameters ({CONFIG.n_layers} layers of {CONFIG.n_heads} heads"),
    ],
)
def test_the_text_states_the_models_size(page, phrase):
    assert phrase in " ".join((ROOT / page).read_text().split())


def test_the_verdicts_are_those_that_a_claim_can_have():
    table = INDEX[INDEX.index("| verdict |") :].split("\n\n")[0]
    assert tuple(row.split("|")[1].strip() for row in table.splitlines()[2:]) == VERDICTS


def test_every_page_is_in_the_contents():
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "book").iterdir() if path.suffix in (".md", ".ipynb")}
    listed = {
        f"{page}{suffix}" for page in PAGES for suffix in (".md", ".ipynb") if (ROOT / f"{page}{suffix}").exists()
    }
    assert len(listed) == len(PAGES)
    assert written == {page for page in listed if page.startswith("book/")}


def test_the_address_of_the_repository_stands_in_one_place():
    """Every button is made from it, so a fork changes one line."""
    address = SITE["repository"]["url"].removeprefix("https://")
    folders = ("book", "_static", "nlm_core", "scripts", "tests", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yml")]
    assert [path.name for path in files if address.encode() in path.read_bytes()] == ["_config.yml"]


def test_what_is_served_with_the_pages_names_no_other_host():
    for path in (ROOT / "_static").iterdir():
        assert set(re.findall(r"\bhttps?://[^\s\"')]+", path.read_text(errors="replace"))) <= {SVG.strip("{}")}, (
            path.name
        )


def test_the_works_that_the_code_names_are_in_the_bibliography():
    keys = re.findall(r"^@\w+\{(\w+),", (ROOT / "book" / "references.bib").read_text(), flags=re.MULTILINE)
    assert keys == sorted(set(keys))
    named = set()
    for path in sorted(path for path in (ROOT / "nlm_core").rglob("*") if path.suffix in (".py", ".c", ".h")):
        for author, year in re.findall(r"\b([A-Z]\w+) (?:(?:et al\.|& [A-Z]\w+) )?((?:19|20)\d\d)\b", path.read_text()):
            named.add(f"{author.lower()}{year}")
    assert len(named) >= 10
    missing = {work for work in named if not any(key.startswith(work) for key in keys)}
    assert not missing, f"add to book/references.bib: {missing}"


def test_the_tests_that_the_appendix_names_exist():
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "book" / "determinism.md").read_text()))
    assert len(named) >= 5
    assert {name for name in named if not (ROOT / "tests" / name).exists()} == set()


def test_publishing_sets_the_root_of_the_404_page():
    """The page stands for any wrong address, so its relative links need the site's root."""
    page = (ROOT / "_static" / "404.html").read_text()
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text())["jobs"]["publish"]["steps"]
    (command,) = [step["run"] for step in steps if "404.html" in step.get("run", "")]
    replaced = re.match(r'sed "s\|(.*?)\|', command)[1].replace('\\"', '"')
    assert page.count(replaced) == 1
    links = set(re.findall(r'href="([^"]+)"', page.replace(replaced, "")))
    assert links == {SITE["html"]["favicon"], f"{TOC['root']}.html", "search.html"}
