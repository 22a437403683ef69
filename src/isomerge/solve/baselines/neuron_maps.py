"""The maps of neurons inside a layer: heads, their dimensions, experts and their neurons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isomerge.matching.gram import Cross, Leaf
from isomerge.matching.transport_maps import Likeness, Spaces, joint_map, likeness, nested_maps, product
from isomerge.solve.baselines.flow_leaves import Maps, Part, Step
from isomerge.solve.baselines.transport_settings import TransportSettings
from isomerge.symmetry.alignment import element_key
from isomerge.symmetry.language.spec import Spec


@dataclass
class Inside:
    """The maps of one group's neurons."""

    own: dict[str, list[Cross]]
    """Of one place alone (queries, keys)."""
    joints: list[tuple[Spaces, Cross]]
    """Of several axes together, across heads."""
    nested: dict[str, Cross]
    """Of every space."""

    def factors(self, part: Part) -> tuple[list[str], list[Cross]]:
        """The axes of a part that are mapped, and the maps whose product it is."""
        rest, maps = list(part.hidden), []
        if part.place in self.own:
            maps = self.own[part.place]
            return [n for n in rest if any(f"{n}-" in f.dims for f in maps)], maps
        for names, joint in self.joints:
            if set(names) <= set(rest):
                rest, maps = [n for n in rest if n not in names], [*maps, joint]
        maps += [self.nested[n] for n in rest if n in self.nested]
        return [n for n in part.hidden if n not in rest or n in self.nested], maps

    def lacks(self, part: Part) -> bool:
        """Whether a part has neurons that no map is known of yet."""
        return set(self.factors(part)[0]) != set(part.hidden)


class NeuronMaps:
    """Makes the maps of one group of parts after the other.

    Args:
        maps: where they are kept.
        local: the permutations inside layers that are transported.
        full: the model's own spec.
        settings: the method.
        compare: what a part's outputs are compared by.
    """

    def __init__(
        self, maps: Maps, local: Spec, full: Spec, settings: TransportSettings, compare: Callable[[Part], Leaf]
    ) -> None:
        self.maps, self.local, self.full, self.settings, self.compare = maps, local, full, settings, compare
        self.elements: dict[str, Cross] = {}
        """The nested maps by element key; those of a whole stack are made in its first layer."""

    def visit(self, parts: Sequence[Part]) -> None:
        """Make the maps of a group and write down what they move; inputs must be aligned already."""
        inside = self._inside([p for p in parts if p.hidden and p.reads and not p.writes], parts)
        for part in parts:
            self.maps.add(part, self._steps(part, inside))

    def _inside(self, made: Sequence[Part], parts: Sequence[Part]) -> Inside:
        """The maps of a group's neurons, from the layers that make them."""
        how, inside = self.settings.how, Inside({}, [], {})
        pool: list[Leaf] = []
        joint: dict[Spaces, list[Leaf]] = {}
        for part in made:
            leaf = self.compare(part)
            separate = self.settings.queries == "separate" and "qk" in self._roles(part)
            if separate:
                (each,) = likeness(self.local, [leaf]).items()
                across = self._across(part)
                inside.own[part.place] = [joint_map(*each, how)] if across else self._nested(each)
            else:
                pool.append(leaf)
                if self._across(part):
                    joint.setdefault(part.hidden, []).append(leaf)
        for names, each in joint.items():
            (pooled,) = likeness(self.local, each).items()
            inside.joints.append((names, joint_map(*pooled, how)))
        if any(inside.lacks(part) for part in parts) and pool:
            scope = dict(parts[0].block.scope)
            keys = {n: element_key(self.local, self.local.spaces[n], scope) for p in parts for n in p.hidden}
            elements = {n: self.elements[key] for n, key in keys.items() if key in self.elements}
            inside.nested = nested_maps(self.local, likeness(self.local, pool), how, elements)
            self.elements |= {keys[n]: t for n, t in inside.nested.items()}
        return inside

    def _nested(self, each: tuple[Spaces, Likeness]) -> list[Cross]:
        return list(nested_maps(self.local, dict([each]), self.settings.how).values())

    def _roles(self, part: Part) -> set[str]:
        return {self.full.spaces[n].role for n in part.hidden}

    def _across(self, part: Part) -> bool:
        """Whether the neurons of a part may be mapped across heads: all of their axes may be renumbered."""
        inside = {a.name for a in part.atoms if a.name in self.full.spaces} - self.full.residual_names
        fixed = {n for n in inside - set(part.hidden) if self.full.sizes[n] > 1}
        return self.settings.heads == "across" and len(part.hidden) > 1 and "h" in self._roles(part) and not fixed

    def _steps(self, part: Part, inside: Inside) -> list[Step]:
        names, factors = inside.factors(part)
        if not names:
            return []
        axes = [a.name for a in part.atoms]
        batch = [n for n in axes if any(n in f.dims for f in factors)]
        at, order = [axes.index(n) for n in batch], [axes.index(n) for n in names]
        scope = ",".join(str(v) for _, v in part.block.scope)
        own = part.place if part.place in inside.own else f"[{scope}]"
        name = f"{','.join(names)} {own} {','.join(batch)}"
        if name not in self.maps.tensors:
            self.maps.keep(name, product(factors, names, batch))
        return [Step(tuple(at), tuple(order), name)]
