"""Small numbers of many rounds, computed together: that costs hardly more than those of one."""

from collections.abc import Callable

from torch import Tensor


class Ahead:
    """Hold what belongs to each of some rounds in a row, computed for all of them at once.

    rounds: how many.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds, self._first = rounds, 0
        self._rows: tuple[Tensor, ...] = ()

    def at(self, round: int, make: Callable[[int, int], Tensor]) -> Tensor:
        """The row of a round, which is not to be altered.

        make: called with the first round and the number of rounds, gives a row for each.
        """
        place = round % self.rounds
        if round - place != self._first or not self._rows:
            self._first = round - place
            self._rows = make(self._first, self.rounds).unbind()
        return self._rows[place]
