"""The leakage check finds a shared run of words wherever it stands, and nothing else."""


def test_a_story_inside_another_is_found(script, own_root, capsys):
    separator = "\n<|endoftext|>\n"
    train, valid = own_root / "train.txt", own_root / "valid.txt"
    # The first story lies in the middle of a longer one, with other capitals and punctuation.
    train.write_text("Long ago, THE DOG RAN; to the old mill! And slept." + separator)
    valid.write_text("The dog ran to the old mill." + separator + "A cat sat on the old mill." + separator)
    overlap = script("overlap")["main"]
    for words, expected in ((7, "1 of 2"), (3, "2 of 2"), (8, "0 of 2")):
        overlap([str(train), str(valid), "--words", str(words)])
        assert capsys.readouterr().out.startswith(f"valid.txt: {expected} stories share a run of {words} words")
