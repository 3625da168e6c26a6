"""Which rows this worker works on: ranges that the first server hands out, in rounds.

A *round* hands out every row of an epoch, or of an evaluation, once. All workers go through the same rounds, whose
numbers they count alike because they make the same calls. The chief begins each round, the others wait for that;
a round that the chief passed over, because it stopped the training, is over for all. What a worker has to report
of a range (the change of its metrics, say) goes with the word that the range is done, and counts if the range does.
"""

import collections
import dataclasses

import numpy as np

from trireme.parameter_server import Over, Range


@dataclasses.dataclass(frozen=True)
class Batch:
    """The rows of one step. `num_rows` is 0 for a step that must not count.

    `share` is the part that they are of the rows of an update.
    """

    round: int
    num_rows: int
    share: float = 1.0


class Rounds:
    """The rounds of one worker, one after the other.

    Attributes:
        number: that of the round under way, or of the next one.
        totals: everybody's reports of the newest round that is over, summed, by name.
    """

    def __init__(self, client, is_chief):
        self.number = 0
        self.totals = {}
        self._client = client
        self._is_chief = is_chief
        self._answer = None
        self._what = None
        self._update_rows = 1
        self._next_row = 0
        self._report = None
        self._batches = collections.deque()

    def begin(self, number, what, num_rows, batch_rows, update_rows=None):
        """Begins a round, or waits until the chief does; returns False if the chief passed it over.

        Args:
            number: of the round, larger than all before.
            what: the same words on all workers.
            num_rows: rows of the round.
            batch_rows: rows of a step; what is handed out is a multiple.
            update_rows: rows of an update that several workers' steps make together; None for one step each.
        """
        self._update_rows = update_rows or batch_rows
        self.number = number
        self._what = (what, num_rows, batch_rows)
        self._answer = self._ask()
        return not (isinstance(self._answer, Over) and not self._answer.totals)

    def batches(self, report):
        """Yields `(start, stop)` of every batch of this worker in the round that was begun, one at least.

        A worker for whom nothing is left takes a first batch that does not count, since Keras cannot do an epoch of
        no steps.

        Args:
            report: a `Report`.
        """
        is_first = True
        self._report = report
        while isinstance(self._answer, Range):
            rows = self._answer
            for start in range(rows.start, rows.stop, self._what[2]):
                stop = min(start + self._what[2], rows.stop)
                self._batches.append(Batch(self.number, stop - start, self._share(start, stop)))
                is_first = False
                self._next_row = stop
                yield start, stop
            self._next_range()
        if is_first:
            self._batches.append(Batch(self.number, 0, 0.0))
            yield 0, min(self._what[1:])

    def upcoming(self, max_batches):
        """Returns where the next batches of the range under way are, as a slice of rows."""
        rows = self._answer
        if not isinstance(rows, Range):
            return slice(0, 0)
        return slice(self._next_row, min(rows.stop, self._next_row + max_batches * self._what[2]))

    def finish(self):
        """Waits for the end of the round. Batches that were not taken, because somebody stopped, are passed over."""
        while isinstance(self._answer, Range):
            self._next_range()
        # Those of an evaluation, which no step pushes, and the one that was on its way when training stopped.
        self._batches.clear()
        self.totals = dict(self._answer.totals)

    def take_batch(self):
        """Returns the `Batch` that the next training step was given.

        One whose round is over meanwhile, as can be where steps run beside Python, does not count either.
        """
        return self._batches.popleft() if self._batches else Batch(self.number, 0)

    def share_of_batch(self):
        """Returns the `share` of the batch that the next training step was given."""
        return self._batches[0].share if self._batches else 0.0

    def meet(self, number, what):
        """Waits until the chief is here too."""
        self.begin(number, what, 1, 1)
        while isinstance(self._answer, Range):
            self._client.range_done(self._answer)
            self._answer = self._ask()

    def _share(self, start, stop):
        first = start // self._update_rows * self._update_rows
        return (stop - start) / (min(first + self._update_rows, self._what[1]) - first)

    def _next_range(self):
        self._client.flush()
        rows = self._answer
        totals = self._report.totals(rows.num_rows)
        self._report.settle(self._client.range_done(rows, totals))
        self._answer = self._ask()

    def _ask(self):
        what, num_rows, batch_rows = self._what
        return self._client.next_range(self.number, num_rows, batch_rows, may_open=self._is_chief, what=what)


def row_order(num_rows, batch_rows, shuffle, seed):
    """Returns the rows of an epoch in the order in which they are handed out, the same on every worker.

    Args:
        shuffle: True, False, or "batch" to shuffle whole batches only.
        seed: list of integers that stands for the epoch.
    """
    if not shuffle:
        return np.arange(num_rows)
    luck = np.random.default_rng(seed)
    if shuffle != "batch":
        return luck.permutation(num_rows)
    # As Keras does: the last, smaller batch stays the last.
    whole = num_rows // batch_rows * batch_rows
    blocks = luck.permutation(np.arange(whole).reshape(-1, batch_rows))
    return np.concatenate([blocks.reshape(-1), np.arange(whole, num_rows)])
