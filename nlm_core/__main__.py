"""`python -m nlm_core` is the `nlm` command."""

from nlm_core.cli import main

main()
