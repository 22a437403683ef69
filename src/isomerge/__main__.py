"""``python -m isomerge``: the command line, where the command itself is not on the path."""

from isomerge.cli.app import main

main()
