"""``python -m pipeline`` is the command line."""

from pipeline.cli import main

main()
