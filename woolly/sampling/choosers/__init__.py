"""Choosers: the last step of the chain, which chooses a candidate."""

from woolly.sampling.choosers.draw import Draw
from woolly.sampling.choosers.greedy import Greedy
from woolly.sampling.choosers.mirostat import Mirostat

__all__ = ["Draw", "Greedy", "Mirostat"]
