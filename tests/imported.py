"""What modules that are imported for a command leave behind, taken away again; and a module that registers a method."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isomerge.archs import plug_in_specs
from isomerge.fusion import registry
from isomerge.observe.data import plug_in_readers
from isomerge.plug_ins import modules

METHOD = '''
from isomerge.fusion.registry import elementwise_method

@elementwise_method
def pulled(tensors, *, pull: float = 0.5):
    """The first model, pulled towards the last."""
    return tensors[0] + pull * (tensors[-1] - tensors[0])
'''
"""A module that registers a merge method."""


@contextmanager
def forgotten() -> Iterator[None]:
    """Registers and Python's modules are afterwards what they were before."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_METHODS", dict(registry.methods()))
        for home, name in ((plug_in_readers, "_READERS"), (plug_in_specs, "_REGISTERED"), (modules, "_MODULES")):
            patch.setattr(home, name, {})
        plug_in_specs._read_texts.cache_clear()
        yield
    plug_in_specs._read_texts.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(("scratch_", "isomerge_import_")):
            del sys.modules[name]
