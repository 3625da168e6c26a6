"""What a worker reports of its rows, and what becomes of everybody's reports at the end of a round.

Metric variables are sums by nature: a range is reported as the change it made in them, and the sum over all ranges is
what one device would hold. State that layers keep (the moving statistics of batch normalisation) is a mean over the
workers of what they end with, weighted by their rows. Only sums travel, so a worker reports its rows times its state,
less what it has reported before: over its ranges that adds up to its rows times its last state.
"""

import keras
import numpy as np

from trireme.backends.model_state import layer_state

ROWS, STOP, PUSHES, STALENESS = "rows", "stop", "pushes", "staleness"


class Report:
    """One worker's reports of one round.

    Args:
        model: the adopted model.
        side: the backend's side of asynchronous training, see `backend_side`.
        client: the `Client`, for its statistics.
        is_training: whether steps change the state of layers.
    """

    def __init__(self, model, side, client, is_training):
        self._model = model
        self._side = side
        self._client = client
        self._sums, self._means = variables_to_report(model, is_training)
        self._num_rows = 0
        self._reported_means = [0.0] * len(self._means)
        # Keras sets metrics back before a round.
        self._last_sums = [0.0] * len(self._sums)
        self._last_statistics = self._statistics()

    def totals(self, num_rows):
        """Returns what was done since the last call, the training on `num_rows` rows, as arrays by name."""
        sums, statistics = self._values(self._sums), self._statistics()
        self._new_rows = self._num_rows + num_rows
        self._new_means = [self._new_rows * value for value in self._values(self._means)]
        totals = {
            ROWS: num_rows,
            STOP: float(bool(getattr(self._model, "stop_training", False))),
            PUSHES: statistics[0] - self._last_statistics[0],
            STALENESS: statistics[1] - self._last_statistics[1],
        }
        totals |= {
            f"sum/{i}": new - old for i, (new, old) in enumerate(zip(sums, self._last_sums, strict=True))
        }
        pairs = zip(self._new_means, self._reported_means, strict=True)
        totals |= {f"mean/{i}": new - old for i, (new, old) in enumerate(pairs)}
        self._last_sums, self._last_statistics = sums, statistics
        return totals

    def settle(self, is_counted):
        """Takes note of whether the rows of the last `totals` counted; if not, another worker does them."""
        if is_counted:
            self._num_rows, self._reported_means = self._new_rows, self._new_means

    def _values(self, variables):
        return [np.asarray(value, np.float64) for value in self._side.values_in_steps(self._model, variables)]

    def _statistics(self):
        statistics = self._client.statistics
        return statistics.applied, statistics.staleness_sum


def variables_to_report(model, is_training):
    """Returns the variables whose values add up over the workers, and those that are averaged."""
    sums = [variable for variable in model.metrics_variables if variable.aggregation == "sum"]
    means = [variable for variable in model.metrics_variables if variable.aggregation != "sum"]
    return sums, means + (layer_state(model) if is_training else [])


def take_totals(model, totals, is_training):
    """Gives the variables of `model` the values that everybody's reports come to."""
    sums, means = variables_to_report(model, is_training)
    for i, variable in enumerate(sums):
        _assign(variable, totals[f"sum/{i}"])
    for i, variable in enumerate(means):
        _assign(variable, totals[f"mean/{i}"] / max(float(totals[ROWS]), 1.0))


def mean_staleness(totals):
    """Returns how many updates the gradients of a round had missed, on average."""
    return float(totals[STALENESS]) / max(float(totals[PUSHES]), 1.0)


def _assign(variable, value):
    variable.assign(np.asarray(value).astype(keras.backend.standardize_dtype(variable.dtype)))
