"""The Python API: the commands as functions, on paths, hub ids, open checkpoints or live modules."""

from isomerge.api.checking import fsck
from isomerge.api.comparing import distance, fingerprint, inspect, orbit_distance, similarity, verify
from isomerge.api.discovering import discover
from isomerge.api.generating import generate
from isomerge.api.measuring import barrier, report, stats
from isomerge.api.merging import extract_lora, merge
from isomerge.api.moving import align, apply, canon
from isomerge.api.opening import open
from isomerge.api.proving import prove

__all__ = [
    "align",
    "apply",
    "barrier",
    "canon",
    "discover",
    "distance",
    "extract_lora",
    "fingerprint",
    "fsck",
    "generate",
    "inspect",
    "merge",
    "open",
    "orbit_distance",
    "prove",
    "report",
    "similarity",
    "stats",
    "verify",
]
