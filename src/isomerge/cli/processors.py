"""How busy the machine is, asked before torch is imported: what its threads do while they wait is settled then.

Threads of torch that have nothing to do spin, since work comes at once as a rule. Where other programs hold the
processors, the thread that is waited for is not running, and those that spin keep it from it: the same command
takes ten times as long. There they sleep instead. On an idle machine sleeping is not free (up to twice as long
where matrices are small), and the number of threads stays as it is in any case: rounding depends on it, and the
output must not depend on what else is running.
"""

from __future__ import annotations

import os
from pathlib import Path

STAT = Path("/proc/stat")
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Whoever has set one of these has chosen."""
TAKEN = 0.25
"""The share of the other processors from which on they count as busy."""

Ticks = tuple[int, int]
"""Hundredths of seconds that all processors of this process have been idle, and that have passed for them."""


def ticks() -> Ticks | None:
    """Up to now; None where the system does not tell."""
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = (line.split() for line in STAT.read_text().splitlines())
        spent = [[int(x) for x in row[1:9]] for row in rows if row and row[0] in mine]
        return sum(row[3] + row[4] for row in spent), sum(map(sum, spent))
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def are_busy(before: Ticks | None, after: Ticks | None, count: int) -> bool:
    """Whether other programs had much of the ``count`` processors in between, while this one kept one of them
    busy."""
    if before is None or after is None or count < 2 or after[1] <= before[1]:
        return False
    idle = count * (after[0] - before[0]) / (after[1] - before[1])
    return idle < (1 - TAKEN) * (count - 1)


def wait_asleep_where_busy(before: Ticks | None) -> None:
    """Have threads of torch, which is not imported yet, sleep while they wait if the machine has been busy since
    ``before``."""
    now = ticks()
    if now is None or any(name in os.environ for name in CHOICES):
        return
    if are_busy(before, now, len(os.sched_getaffinity(0))):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
