"""How stories begin: the openings that ship are what the script makes of the stories."""

from conftest import ROOT

from nlm_core import Tokenizer
from nlm_core.files import project_root
from nlm_core.text import blocks, stories


def test_openings_are_the_first_words_of_stories_that_are_long_enough(script, tokenizer):
    openings = script("openings", COUNT=2, WORDS=5, LENGTH=6)["openings"]
    texts = [
        'By the "river" ran a dog. It ran far away.<|endoftext|>\n',
        "Too short, far too short.<|endoftext|>\n",
        'By the "river" ran a dog that was fast.<|endoftext|>\n',
        "Nothing.\n",
        "Two birds sang a new song. They sang it again.<|endoftext|>\n",
        "Three more that nobody asked for are left out here.<|endoftext|>\n",
    ]
    assert openings(tokenizer, texts) == {'By the "river" ran a': texts[0], "Two birds sang a new": texts[4]}


def test_an_opening_belongs_to_the_story_that_is_long_enough(script, tokenizer):
    openings = script("openings", COUNT=9, WORDS=5, LENGTH=6)["openings"]
    texts = [
        "One day a boy met.<|endoftext|>\n",  # begins alike, but is too short
        "One day a boy metal.<|endoftext|>\n",  # begins with the same letters
        "One day a boy met a dog. They ran and ran.<|endoftext|>\n",
        "One day\na boy met a dog. They ran and ran.<|endoftext|>\n",  # would be two prompts in a file of lines
    ]
    assert openings(tokenizer, texts) == {"One day a boy met": texts[2]}


def test_stories_that_end_soon_are_counted_with_their_separator(script, tokenizer):
    rest = " ran.<|endoftext|>"
    stories = ["One two three" + rest + "\n", "One two three and a dog" + rest + "\n", "One two three"]
    for length, share in ((len(tokenizer.encode(rest)), 0.5), (len(tokenizer.encode(rest)) - 1, 0.0), (999, 1.0)):
        found = script("openings", WORDS=3, LENGTH=length)["ending_soon"](tokenizer, stories)
        assert found == {"stories": 2, "share": share}  # the last one does not end
    assert script("openings", WORDS=3)["ending_soon"](tokenizer, stories[2:]) == {"stories": 0, "share": None}


def test_the_openings_that_ship_are_those_of_the_stories(script, own_root):
    for part in ("data/stories.txt", "checkpoints/nlm/tokenizer.json"):
        (own_root / part).parent.mkdir(parents=True)
        (own_root / part).symlink_to(ROOT / part)
    script("openings")["main"]([])
    made = (project_root() / "data" / "openings.txt").read_text()
    assert len(made.splitlines()) == 100
    assert made == (ROOT / "data" / "openings.txt").read_text()


def test_each_opening_that_ships_belongs_to_the_first_story_that_begins_so(script):
    """So a chapter may find the story by its opening alone."""
    tokenizer = Tokenizer.load(ROOT / "checkpoints" / "nlm" / "tokenizer.json")
    texts = list(stories(blocks(ROOT / "data" / "stories.txt")))
    for opening, story in script("openings")["openings"](tokenizer, texts).items():
        assert next(text for text in texts if text.startswith(opening)) == story
