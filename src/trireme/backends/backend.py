"""The contract every backend keeps; `tests/contract` holds each of them to it."""

import abc
import contextlib
import os

import numpy as np

from trireme.backends import step
from trireme.cluster.board import Board
from trireme.cluster.cluster import Cluster

DEFAULT_TIMEOUT_S = 600.0


class Backend(abc.ABC):
    """What a strategy needs from a framework.

    A worker process calls `start` once, before user code touches the framework, and `stop` at its end. The
    collectives below work on NumPy arrays among *workers* and serve decisions, metrics and initial values;
    gradients travel inside the compiled step and never through them.
    """

    name: str
    # Whether a step sees the whole global batch, as under SPMD: then sums, losses and metrics are global already.
    sees_global_batch = False

    def __init__(self):
        self.cluster = Cluster()
        self.board = None
        self.timeout_s = DEFAULT_TIMEOUT_S
        # The collectives on NumPy arrays that `_start_runtime` sets up where there are several workers.
        self._host = None
        self._at_end = []

    def start(self, cluster):
        """Starts the framework's runtime for this process' place in `cluster`, with the run's common seed."""
        self.cluster = cluster
        self.timeout_s = float(os.environ.get("TRIREME_TIMEOUT_S", DEFAULT_TIMEOUT_S))
        self.board = Board.attach(os.environ)
        self._start_runtime()
        if "TRIREME_SEED" in os.environ:
            import keras

            # Unseeded scripts must still draw the same weights and the same shuffles on every worker.
            keras.utils.set_random_seed(int(os.environ["TRIREME_SEED"]))

    def stop(self):
        """Ends the runtime. After a successful run every worker waits here for all others."""
        for function in self._at_end:
            function()
        if self.cluster.num_workers > 1:
            self.barrier()
        self._stop_runtime()

    def at_end(self, function):
        """Has `function` called when this worker's program has ended well."""
        self._at_end.append(function)

    @abc.abstractmethod
    def _start_runtime(self):
        """Connects this process to its peers."""

    def _stop_runtime(self):
        """Disconnects this process from its peers."""

    @abc.abstractmethod
    def num_local_devices(self):
        """Returns how many devices of this machine the framework sees; a CPU counts as one."""

    def drive(self, num_devices):
        """Returns whether this very process can drive `num_devices` devices; if not, a launcher is needed."""
        return num_devices == 1

    def processes_for(self, num_replicas):
        """Returns `num_workers` and `replicas_per_worker` for `num_replicas` replicas on this machine."""
        return {"num_workers": num_replicas, "replicas_per_worker": 1}

    def release_port(self):
        """Gives up the port that the launcher reserved for this worker; call just before binding it."""
        fd = os.environ.pop("TRIREME_PORT_FD", None)
        if fd is not None:
            os.close(int(fd))

    def report_waiting(self, is_waiting):
        """Tells the launcher whether this worker waits for its peers."""
        if self.board is not None:
            self.board.post(self.cluster.rank, state="waiting" if is_waiting else "running")

    @contextlib.contextmanager
    def waiting(self):
        """Tells the launcher that this worker meets its peers meanwhile."""
        self.report_waiting(True)
        try:
            yield
        finally:
            self.report_waiting(False)

    def begin_fit(self, rows_per_step):
        """Tells the launcher how many rows a step of `fit` has over all replicas; None where that is not known."""
        if self.board is not None:
            self.board.post_rows_per_step(self.cluster.rank, rows_per_step)

    def begin_step(self, model, step):
        """Tells the launcher that `fit` is about to take step `step` of the run, counted from 0."""
        if self.board is not None:
            self.board.post(self.cluster.rank, step=step, state="running")

    def wait_for_steps(self, model):
        """Waits until the steps that `fit` has begun are done, wherever looking at their results would wait too."""

    def begin_own_stream(self):
        """Has this worker draw, from here on, numbers of its own from the state that all workers have."""

    # Collectives among workers, on NumPy arrays.

    def all_reduce(self, array, op="sum"):
        """Returns the sum ("sum") or the largest ("max") of every worker's `array`, entry by entry."""
        array = np.asarray(array)
        return array if self._host is None else self._host.all_reduce(array, op)

    def all_gather(self, array):
        """Returns the list of every worker's `array`, in rank order; first dimensions may differ."""
        array = np.asarray(array)
        return [array] if self._host is None else self._host.all_gather(array)

    def broadcast(self, array):
        """Returns worker 0's `array` on every worker; shape and dtype are the same everywhere."""
        array = np.asarray(array)
        return array if self._host is None else self._host.broadcast(array)

    def barrier(self):
        """Waits until every worker is here."""
        self.all_reduce(np.zeros(1, np.int32))

    # Where Keras' own loop meets the strategy.

    @abc.abstractmethod
    def shard(self, source):
        """Returns a Keras data adapter that yields this worker's share of each global batch of a `Source`."""

    @abc.abstractmethod
    def connect(self, model):
        """Makes `model` exchange with the other replicas from its next step on. Harmless to repeat."""

    def takes_over(self, optimizer, variables):
        """Returns whether the gradients that `optimizer` is given are exchanged from this call of `apply` on.

        Args:
            optimizer: a Keras optimizer that no step of an adopted model has used.
            variables: what it is to update, variables of an adopted model among them.
        """
        return False

    @abc.abstractmethod
    def build(self, model, adapter, training=True):
        """Creates the variables that the first batch of `adapter` would create, so that they can be made equal.

        Args:
            model: an adopted model.
            adapter: what `shard` returned.
            training: whether also those of losses, metrics and optimizers.
        """

    def is_tracing(self):
        """Whether this is inside a step that is being compiled, where no NumPy value exists."""
        return False

    @contextlib.contextmanager
    def calling(self, model):
        """Surrounds each call of `fit`, `evaluate` and the like on an adopted model."""
        yield

    @contextlib.contextmanager
    def alone(self):
        """Lets adopted models train as on one device meanwhile: every worker by itself, with whole batches."""
        with step.alone():
            yield

    @contextlib.contextmanager
    def sharding_batches(self, model, function_name):
        """Surrounds a call of `train_on_batch` and the like, which is given global batches.

        Args:
            model: an adopted model.
            function_name: "train_function", "test_function" or "predict_function".
        """
        if self.sees_global_batch:
            yield
            return
        getattr(model, f"make_{function_name}")()
        function = getattr(model, function_name)
        setattr(model, function_name, self.sharded_function(function))
        try:
            yield
        finally:
            setattr(model, function_name, function)

    def trying_once(self):
        """Returns `try_once(trial, judge)` for use in steps, which in the first step with rows of this worker calls
        `judge` with the values of the tensors that `trial()` returns, as NumPy arrays.
        """
        raise NotImplementedError(f"steps of {self.name} see whole batches")

    def sharded_function(self, function):
        """Returns `function`, one of Keras' loops over this worker's batches, as one that takes global batches."""
        raise NotImplementedError(f"steps of {self.name} see whole batches")
