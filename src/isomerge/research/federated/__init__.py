"""Federated averaging with alignment: clients' weights are brought into one coordinate system before they are
averaged.

`aggregate` and `align_updates` work on parameters in memory, whatever framework carries them;
`isomerge.research.federated.flower` has the strategy for Flower (``pip install 'isomerge[flower]'``).
"""

from isomerge.research.federated.aggregate import Aligned, activations_of, aggregate, align_updates

__all__ = ["Aligned", "activations_of", "aggregate", "align_updates"]
