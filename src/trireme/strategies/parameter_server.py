"""Parameter servers: workers push gradients and pull weights, each at its own pace."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from trireme.cluster.resolve import resolve
from trireme.errors import UsageError
from trireme.launch.relaunch import relaunch
from trireme.launch.variables import RENDEZVOUS_TIMEOUT_S, SEED, SERVER_SOCKETS, duration_s
from trireme.parameter_server import Partitioner
from trireme.strategies.mirrored import is_worker
from trireme.strategies.strategy import Strategy, loaded_backend

_SERVER_DEADLINE_S = 60.0
MIN_TABLE_BYTES = 64 << 20


class ParameterServerStrategy(Strategy):
    """Trains asynchronously: servers own the weights and the optimizer, workers push gradients and take weights.

    Started by `trireme run --workers 4 --servers 2 train.py`, or with a `TF_CONFIG` that has `ps` tasks. Each epoch's
    rows are handed out to the workers in small ranges, so that a slow worker does less; each row is trained on once
    in an epoch, also when a worker dies. `batch_size` is the number of rows of one update: of each worker's step or,
    with `max_staleness=0`, of all workers' steps together.

    Args:
        max_staleness: how many steps a worker may be ahead of the slowest when it takes weights. None: any number.
            0: lock step, in which the workers' gradients become one update, as on one device.
        variable_partitioner: function that gets a `VariableSpec` and returns into how many slices of rows it is cut,
            such as `MinSizePartitioner` and `FixedShardsPartitioner`. Default: large variables are cut into one slice
            for each server.
        min_table_bytes: the tables of `keras.layers.Embedding` of at least that size are on the servers only; workers
            get and push the rows of their batch.

    Raises:
        UsageError: an argument is impossible, or the process was started without servers.
    """

    is_asynchronous = True

    def __init__(
        self,
        max_staleness: int | None = None,
        variable_partitioner: Partitioner | None = None,
        min_table_bytes: int = MIN_TABLE_BYTES,
    ) -> None:
        if max_staleness is not None and (not isinstance(max_staleness, int) or max_staleness < 0):
            raise UsageError(
                f"max_staleness is {max_staleness!r}; it must be a whole number of at least 0, or None for no limit."
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise UsageError(
                f"variable_partitioner is {variable_partitioner!r}; it must be a function that gets a variable and "
                "returns a number of slices, such as trireme.MinSizePartitioner(max_shards=2)."
            )
        cluster = resolve(os.environ)
        if cluster.role == "server":
            # As `tf.distribute` has it, a `ps` task starts the same script, and is a server from here on. Not imported
            # at the top, since `python -m` warns of a module that its package has loaded already.
            from trireme.launch.server_process import serve_parameters

            sys.exit(serve_parameters())
        if not is_worker():
            _become_a_run(bool(cluster.servers))
        if not cluster.servers:
            raise UsageError(
                "ParameterServerStrategy needs servers, and this run has none. Type, for example, "
                f"`trireme run --workers {max(cluster.num_workers, 2)} --servers 1 ...`."
            )
        super().__init__(cluster, loaded_backend())
        from trireme.backends.parameter_server import backend_side

        self.max_staleness = max_staleness
        self.side = backend_side(self.backend.name)
        self.seed = int(os.environ.get(SEED, "0"))
        self.exchange: Any = None
        self._partitioner = variable_partitioner
        self._min_table_bytes = min_table_bytes
        self._trains: Any = None

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of copies of the model whose gradients make one update."""
        return self.cluster.num_workers if self.max_staleness == 0 else 1

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Refused: the workers of an asynchronous run do not meet."""
        raise UsageError(
            "ParameterServerStrategy has no reduce: its workers do not meet. Use MirroredStrategy."
        )

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Refused: the workers of an asynchronous run do not meet."""
        raise UsageError(
            "ParameterServerStrategy has no gather: its workers do not meet. Use MirroredStrategy."
        )

    def keeps_table(self, layer: Any) -> bool:
        """Whether the table of an embedding layer is on the servers only."""
        import numpy as np

        num_bytes = layer.input_dim * layer.output_dim * np.dtype(layer.variable_dtype).itemsize
        return num_bytes >= self._min_table_bytes

    def connect(self, model: Any) -> int:
        """Joins the servers with a built model, at the first call; returns the round that the workers are in.

        Raises:
            UsageError: the model cannot be trained like that, or is another than before.
        """
        if self.exchange is None:
            return self._join(model)
        if self._trains != (model, model.optimizer):
            raise UsageError(
                "ParameterServerStrategy trains one model with one optimizer in a run, and this is another. Start "
                "another run for it."
            )
        return self.exchange.rounds.number

    def _join(self, model: Any) -> int:
        import keras

        from trireme.backends.parameter_server.description import describe
        from trireme.backends.parameter_server.exchange import Exchange
        from trireme.parameter_server import Client, Deadlines, WorkerKeys

        description = describe(
            model, len(self.cluster.servers), self.max_staleness, self._partitioner, self.seed
        )
        timeout_s = self.backend.timeout_s
        # Where processes come one by one, as pods do, a server may be missing for as long as they wait for each other.
        server_s = duration_s(os.environ, RENDEZVOUS_TIMEOUT_S, _SERVER_DEADLINE_S)
        client = Client(
            self.cluster.servers,
            self.cluster.rank,
            description.placement,
            max_staleness=self.max_staleness,
            run_id=self.cluster.run_id,
            keys=WorkerKeys.from_environ(os.environ),
            deadlines=Deadlines(server_s=min(server_s, timeout_s), peers_s=timeout_s),
            socket_directory=os.environ.get(SERVER_SOCKETS) or None,
        )
        self._trains = (model, model.optimizer)
        self.exchange = Exchange(client, description, self.cluster.is_chief, self.max_staleness)
        initial = [keras.ops.convert_to_numpy(variable) for variable in description.variables]
        current_round: int = self.exchange.connect(dict(zip(description.names, initial, strict=True)))
        self.backend.at_end(self.exchange.finish)
        self.side.replace_apply(model, self.exchange)
        for name in ("train_function", "test_function", "predict_function"):
            # What was compiled before would go on with the step it was compiled with.
            setattr(model, name, None)
        return current_round


def _become_a_run(has_servers: bool) -> NoReturn:
    """Replaces a plain process by a launcher: of its own worker where there are servers, else of a whole run."""
    if has_servers:
        relaunch(num_workers=1)
    relaunch(num_workers=loaded_backend().num_local_devices(), num_servers=1)
