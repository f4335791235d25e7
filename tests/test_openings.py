"""How stories begin: the openings that ship are what the script makes of the stories."""

from conftest import ROOT

from nlm_core.files import project_root


def test_openings_are_the_first_words_of_stories_that_are_long_enough(script, tokenizer):
    openings = script("openings", COUNT=2, WORDS=5, LENGTH=6)["openings"]
    stories = [
        'By the "river" ran a dog. It ran far away.<|endoftext|>\n',
        "Too short, far too short.<|endoftext|>\n",
        'By the "river" ran a dog that was fast.<|endoftext|>\n',
        "Nothing.\n",
        "Two birds sang a new song. They sang it again.<|endoftext|>\n",
        "Three more that nobody asked for are left out here.<|endoftext|>\n",
    ]
    assert openings(tokenizer, stories) == ['By the "river" ran a', "Two birds sang a new"]


def test_the_openings_that_ship_are_those_of_the_stories(script, own_root):
    for part in ("data/stories.txt", "checkpoints/nlm/tokenizer.json"):
        (own_root / part).parent.mkdir(parents=True)
        (own_root / part).symlink_to(ROOT / part)
    script("openings")["main"]([])
    made = (project_root() / "data" / "openings.txt").read_text()
    assert len(made.splitlines()) == 100
    assert made == (ROOT / "data" / "openings.txt").read_text()
