"""The engines by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from isomerge.errors import IsomergeError
from isomerge.run.local_engine import Engine, LocalEngine

ENGINES = ("local", "ray")


@contextmanager
def engine_of(name: str, address: str | None = None) -> Iterator[Engine]:
    """An engine for one run.

    Args:
        name: ``local``, or ``ray`` for the machines of a cluster.
        address: of the cluster: ``auto`` or ``host:port``; None starts one of this machine alone.

    Raises:
        IsomergeError: another name, an address without a cluster, or Ray is not installed.
    """
    if name not in ENGINES:
        raise IsomergeError(f"--engine {name}: choose from {', '.join(ENGINES)}")
    if name == "local":
        if address is not None:
            raise IsomergeError(f"--address {address} is that of a Ray cluster: add --engine ray")
        yield LocalEngine()
        return
    # Ray's engine is loaded when it is named: few have a cluster
    from isomerge.run.cluster.ray_engine import RayEngine

    engine = RayEngine(address)
    try:
        yield engine
    finally:
        engine.close()
