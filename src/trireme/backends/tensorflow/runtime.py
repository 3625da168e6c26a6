"""Starts TensorFlow in a worker: its device, and its connection to the other workers."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context as tf_context

from trireme.backends.host_collectives import GatheringCollectives
from trireme.backends.tensorflow.collectives import RuntimeCollectives, SharedMemoryCollectives
from trireme.backends.transport import join_group


def use_local_device():
    """Lets TensorFlow take GPU memory as it needs it, since processes may share a GPU's machine."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def connect(backend):
    """Returns `(host collectives, in-graph collectives)` among the workers of the backend's cluster."""
    group = join_group(backend, on_cpu=not tf.config.list_physical_devices("GPU"))
    if group is not None:
        return group, SharedMemoryCollectives(group)
    backend.release_port()
    _start_collective_runtime(backend.cluster)
    collectives = RuntimeCollectives(backend.cluster.num_workers, backend.timeout_s)
    return HostCollectives(collectives, backend.cluster), collectives


def _start_collective_runtime(cluster):
    """Joins the workers into one TensorFlow cluster: what `MultiWorkerMirroredStrategy` does at its start."""
    leader = "/job:worker/replica:0/task:0"
    context = tf_context.context()
    context.configure_collective_ops(
        collective_leader=leader,
        scoped_allocator_enabled_ops=("CollectiveReduce",),
        use_nccl_communication=bool(tf.config.list_physical_devices("GPU")),
        device_filters=(f"/job:worker/task:{cluster.rank}",),
    )
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({"worker": list(cluster.workers)}).as_cluster_def(),
        job_name="worker",
        task_index=cluster.rank,
        protocol="grpc",
    )
    server.default_session_config.experimental.collective_group_leader = leader
    context.enable_collective_ops(server)


class HostCollectives(GatheringCollectives):
    """Collectives on NumPy arrays by TensorFlow's runtime."""

    def __init__(self, collectives, cluster):
        self._collectives = collectives
        self._cluster = cluster

    @property
    def is_chief(self):
        return self._cluster.is_chief

    def all_gather(self, array):
        as_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._collectives.start_step("host")
        sizes = self._collectives.all_gather(tf.constant([len(as_bytes)], tf.int32)).numpy()
        # The runtime moves no bytes as such, so they travel as 32-bit words.
        padded_sizes = -(-sizes // 4) * 4
        words = np.zeros(-(-len(as_bytes) // 4) * 4, np.uint8)
        words[: len(as_bytes)] = as_bytes
        rows = self._collectives.all_gather(tf.constant(words.view(np.int32))).numpy().view(np.uint8)
        starts = np.cumsum(padded_sizes) - padded_sizes
        parts = [rows[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        return [part.copy().view(array.dtype).reshape(-1, *array.shape[1:]) for part in parts]
