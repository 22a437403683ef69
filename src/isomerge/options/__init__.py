"""Options of commands, each declared once; which of them a run uses, and what is said of those that it does not."""

from isomerge.errors import IN_PYTHON
from isomerge.options.files import OpeningOptions as OpeningOptions
from isomerge.options.files import OutputOptions as OutputOptions
from isomerge.options.fusing import AligningOptions as AligningOptions
from isomerge.options.fusing import FusingOptions as FusingOptions
from isomerge.options.matching import MatchingOptions as MatchingOptions
from isomerge.options.option import switches
from isomerge.options.running import ExamplesOptions as ExamplesOptions
from isomerge.options.running import RunningOptions as RunningOptions
from isomerge.options.spaces import SpacesOptions as SpacesOptions

IN_PYTHON.update(switches())
