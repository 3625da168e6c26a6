"""What all strategies have in common: a cluster, a backend, a scope."""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trireme.cluster.cluster import Cluster
from trireme.cluster.machine import keras_backend
from trireme.cluster.resolve import resolve
from trireme.data import InputContext, distribute_from_function

if TYPE_CHECKING:
    from trireme.backends.verification import Verification

_current: contextvars.ContextVar["Strategy | None"] = contextvars.ContextVar(
    "trireme_current_strategy", default=None
)


class Strategy:
    """How a model trains on several devices. Use one of its subclasses.

    A model that is made or compiled in the strategy's `scope()` trains, evaluates and predicts by it, also
    after the scope has ended:

    ```python
    strategy = trireme.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([...])
        model.compile("adam", "mse")
    model.fit(x, y, batch_size=128)  # the global batch size
    ```

    Attributes:
        cluster: the processes of the run, a `trireme.cluster.Cluster`.
        backend: the Keras backend's side of it.
    """

    # Whether workers go their own pace, by way of parameter servers.
    is_asynchronous = False

    def __init__(self, cluster: Cluster, backend: Any) -> None:
        self.cluster = cluster
        self.backend = backend

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of copies of the model that each step's gradients are averaged over."""
        return self.cluster.num_replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator["Strategy"]:
        """Returns a context manager; models made or compiled in it are trained by this strategy."""
        from trireme.backends.scope import entered

        token = _current.set(self)
        try:
            with entered(self):
                yield self
        finally:
            _current.reset(token)

    def verify(
        self,
        model: Any,
        data: Any,
        *,
        batch_size: int | None = None,
        num_steps: int = 3,
    ) -> "Verification":
        """Returns whether the replicas train `model` as one device would, by trying it out.

        Makes a few steps from the model's present state twice: on one device and on all replicas. Then it puts the
        model, its optimizers and its metrics back. All workers must call it, with the same data.

        ```python
        print(strategy.verify(model, (x, y), batch_size=128))
        ```

        Args:
            model: a compiled model of this strategy.
            data: `(x, y)` or `(x, y, sample_weight)`, or anything else that `fit` takes as its `x`. Only the first
                steps of it are taken.
            batch_size: the global batch size, as in `fit`.
            num_steps: steps to compare. The last has a row less where its rows divide evenly among the replicas.

        Returns:
            A `Verification`: print it, or ask for `is_exact`.

        Raises:
            UsageError: the model is not compiled, not of this strategy, or there is one replica only.
        """
        from trireme.backends.adapters import parts_of
        from trireme.backends.verification import verify

        x, y, sample_weight = parts_of(data)
        return verify(model, self, x, y, sample_weight, num_steps=num_steps, batch_size=batch_size)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[InputContext], Any]) -> Any:
        """Returns an input whose batches are this worker's own, for `fit`, `evaluate` and `predict` to take as `x`.

        For data that you share out yourself, and for sources that cannot yield the same batches on every worker. Each
        step trains on the rows that all workers read for it. The workers may have different numbers of batches: an
        epoch lasts as long as the longest, and those whose input has ended add no rows to its last steps.

        ```python
        def make_dataset(context):
            batch_size = context.get_per_replica_batch_size(256)
            files = all_files[context.input_pipeline_id :: context.num_input_pipelines]
            return tf.data.TFRecordDataset(files).map(parse).batch(batch_size)


        model.fit(strategy.distribute_datasets_from_function(make_dataset))
        ```

        Args:
            dataset_fn: called once, with a `trireme.data.InputContext`. Returns a `tf.data.Dataset` or anything else
                that Keras takes as `x` alone, each of whose batches is one replica's part of a step.

        Raises:
            UsageError: the strategy is asynchronous: its servers hand out the rows.
        """
        if self.is_asynchronous:
            from trireme.errors import UsageError

            raise UsageError(
                f"{type(self).__name__} hands out the rows of arrays by itself, so it takes no inputs that the workers "
                "share out: pass the same arrays to `fit` on every worker, or train with MirroredStrategy."
            )
        return distribute_from_function(dataset_fn, self.cluster)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Returns one value from every worker's `value`.

        Args:
            reduce_op: `"sum"`, `"mean"` or `"max"`, in upper or lower case.
            value: an array, number or tensor; the same shape on every worker.
            axis: an axis of `value` to reduce as well, or None.

        Returns:
            A NumPy array, the same on every worker.
        """
        import keras
        import numpy as np

        operation = str(reduce_op).rsplit(".", 1)[-1].lower()
        functions: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}
        if operation not in functions:
            from trireme.errors import UsageError

            raise UsageError(f"reduce_op is {reduce_op!r}; it can be 'sum', 'mean' or 'max'.")
        array = np.asarray(keras.ops.convert_to_numpy(value))
        if axis is not None:
            array = functions[operation](array, axis=axis)
        if operation == "mean":
            return self.backend.all_reduce(array.astype(np.result_type(array, np.float32))) / (
                self.cluster.num_workers
            )
        return self.backend.all_reduce(array, operation)

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Returns every worker's `value`, joined along `axis` in rank order; the same on every worker.

        Args:
            value: an array or tensor whose other axes are the same length on every worker.
            axis: the axis to join.
        """
        import keras
        import numpy as np

        array = np.moveaxis(np.asarray(keras.ops.convert_to_numpy(value)), axis, 0)
        return np.moveaxis(np.concatenate(self.backend.all_gather(array)), 0, axis)

    def __repr__(self) -> str:
        count = self.num_replicas_in_sync
        replicas = f"{count} replica{'' if count == 1 else 's'}"
        return f"{type(self).__name__}({replicas} on {self.backend.name}, {self.cluster!r})"


def get_strategy() -> Strategy:
    """Returns the strategy whose scope this is in; outside of any, a `OneDeviceStrategy`."""
    strategy = _current.get()
    if strategy is None:
        from trireme.strategies.one_device import OneDeviceStrategy

        strategy = OneDeviceStrategy()
    return strategy


def is_chief() -> bool:
    """Returns whether this process is worker 0, which writes and prints for all. True outside of a cluster."""
    return resolve(os.environ).is_chief


def loaded_backend() -> Any:
    """Returns the backend object of the Keras backend this process uses."""
    import sys

    from trireme import backends

    keras = sys.modules.get("keras")
    # Keras, once imported, has chosen; the variable may have changed since.
    return backends.load(keras.backend.backend() if keras is not None else keras_backend(os.environ))
