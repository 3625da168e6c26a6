"""What a worker exchanges with the servers in a step, on NumPy arrays; the backends call it from inside their steps."""

import contextlib
import threading

import numpy as np

from trireme.backends.parameter_server.rounds import Rounds
from trireme.parameter_server import RowGradient, merge_duplicate_rows


class Exchange:
    """A worker's side of one model's training.

    Except in lock step, a step is given the weights that were asked for in the step before, so that they travel
    while the batch is computed.

    Attributes:
        failure: why an exchange inside a step failed, or None. Frameworks tell of it by an error of their own.
        learning_rate: that which the servers got last, None where they have a schedule.

    Args:
        client: a `Client`, not yet connected.
        description: the `Description` of the model.
        is_chief: whether this worker begins epochs and makes the variables.
        max_staleness: that of the strategy.
    """

    def __init__(self, client, description, is_chief, max_staleness):
        self.client = client
        self.description = description
        self.is_chief = is_chief
        self.is_lock_step = max_staleness == 0
        self.rounds = Rounds(client, is_chief)
        self._values = {}
        self._pending = None
        self._is_finished = False
        self._table_of = {id(layer): name for name, layer in description.tables.items()}
        self._row_gradients = {}
        # The steps of some frameworks run beside Python, and a step must not meet the end of a range.
        self._lock = threading.RLock()
        self.failure = None
        self.learning_rate = description.learning_rate
        # The round in which the others were when this process came to them, -1 for those who begin a run.
        self._joined_round = -1

    @property
    def num_updates(self):
        """How many updates the weights have that this worker has now."""
        return self.client.num_updates

    def connect(self, initial_values):
        """Greets the servers; the chief's `initial_values`, by name, become those of all.

        Returns:
            The number of the round that the others are in.
        """
        current_round = self.client.connect()
        is_new = self.is_chief and self.client.create(initial_values, self.description.settings)
        if not is_new:
            self._joined_round = current_round
        self.refresh()
        return current_round

    def leads(self, number):
        """Whether the weights that this worker has before a round are those that the servers should begin it with.

        A chief that was started again has missed what they have learned in the rounds before.
        """
        return self.is_chief and number > self._joined_round

    def assign(self, values, number):
        """Gives the servers the values of the variables that workers hold, in order, where others are there.

        Round `number` is to begin with them. Workers that have not taken the weights of the one before do that first.
        """
        named = dict(zip(self.description.names, values, strict=True))
        changed = {name: value for name, value in named.items() if not _is_same(value, self._values[name])}
        if changed:
            with self._lock:
                self.client.gather(number)
                self.client.assign(changed)
            self._values |= changed

    def configure(self, settings):
        """Changes the settings of all servers."""
        with self._lock:
            self.client.configure(settings)

    def refresh(self):
        """Returns the newest values of the variables that workers hold, in order. All pushes so far are in them."""
        with self._lock:
            if self._pending is not None:
                # What was asked for must be taken, or it would be kept for ever.
                self._pending.result()
                self._pending = None
            self._values = self.client.pull(variables=self.description.names)
        return [self._values[name] for name in self.description.names]

    def values(self):
        """Returns the values that this worker got last."""
        return [self._values[name] for name in self.description.names]

    def step(self, gradients):
        """Pushes the gradients of a step and returns the values to go on with.

        Args:
            gradients: for each variable an array, a `RowGradient` or None.
        """
        with self._lock, self.keeping_failure():
            batch = self.rounds.take_batch()
            named = self._named(gradients)
            if batch.num_rows:
                self._push(named, batch)
            if self.is_lock_step:
                self._values = self._start_pull().result()
            else:
                # The step of these gradients had the values of `_values`; only now others may take their place.
                arrived, self._pending = self._pending, self._start_pull()
                self._values = (arrived or self._pending).result()
            return self.values()

    def look_up(self, layer, ids):
        """Returns the newest rows of a remote layer's table, in an array of the shape `(*ids.shape, *row_shape)`."""
        table = self._table_of[id(layer)]
        with self._lock, self.keeping_failure():
            return self.client.pull({table: ids}, variables=())[table]

    def read_table(self, layer):
        """Returns the whole table of a remote layer: memory that a worker may not have."""
        table = self._table_of[id(layer)]
        with self._lock:
            return self.client.pull(variables=[table])[table]

    def keep_row_gradient(self, layer, ids, gradient):
        """Keeps the gradient of looked-up rows for the push of this step."""
        table = self._table_of[id(layer)]
        kept = RowGradient(ids.reshape(-1), gradient.reshape(-1, gradient.shape[-1]).copy())
        self._row_gradients.setdefault(table, []).append(kept)

    @contextlib.contextmanager
    def keeping_failure(self):
        """Surrounds what frameworks call."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    def finish(self):
        """Ends this worker's part of the run. Harmless to repeat."""
        if not self._is_finished:
            self._is_finished = True
            self.client.finish()

    def _start_pull(self):
        return self.client.start_pull(variables=self.description.names)

    def _named(self, gradients):
        named = {
            name: gradient
            for name, gradient in zip(self.description.names, gradients, strict=True)
            if gradient is not None
        }
        kept, self._row_gradients = self._row_gradients, {}
        for table, parts in kept.items():
            rows = np.concatenate([part.rows for part in parts])
            named[table] = RowGradient(rows, np.concatenate([part.values for part in parts]))
        return named

    def _push(self, named, batch):
        self.client.push(self._clipped(named), float(batch.num_rows), batch.round)

    def _clipped(self, named):
        each, together = self.description.clipnorm, self.description.global_clipnorm
        if each is None and together is None:
            return named
        named = {
            name: merge_duplicate_rows(gradient) if isinstance(gradient, RowGradient) else gradient
            for name, gradient in named.items()
        }
        norms = {
            name: np.linalg.norm(_entries(gradient).astype(np.float32)) for name, gradient in named.items()
        }
        if together is not None:
            total = np.sqrt(sum(float(norm) ** 2 for norm in norms.values()))
            factors = dict.fromkeys(named, min(1.0, together / total) if total > 0 else 1.0)
        else:
            factors = {name: min(1.0, each / norm) if norm > 0 else 1.0 for name, norm in norms.items()}
        return {name: _scaled(gradient, factors[name]) for name, gradient in named.items()}


def _is_same(one, other):
    # By their bytes, so that NaN is NaN.
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def _entries(gradient):
    return (gradient.values if isinstance(gradient, RowGradient) else gradient).reshape(-1)


def _scaled(gradient, factor):
    if isinstance(gradient, RowGradient):
        return RowGradient(gradient.rows, _scaled(gradient.values, factor))
    return gradient * np.asarray(factor, gradient.dtype)
