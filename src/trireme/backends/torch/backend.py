"""The PyTorch side of the contract."""

import contextlib

import numpy as np
import torch

from trireme.backends import batch_norm, custom_loops, step
from trireme.backends.adoption import syncs_batch_norm
from trireme.backends.backend import Backend
from trireme.backends.build import build_model
from trireme.backends.model_state import optimizers_of
from trireme.backends.optimizers import connect_optimizer
from trireme.backends.torch import random_streams, runtime
from trireme.backends.torch.collectives import (
    HostCollectives,
    ProcessGroupCollectives,
    accumulation_dtype,
    gather_rows,
)
from trireme.backends.torch.data import shard_adapter
from trireme.backends.torch.gradients import GradientExchange
from trireme.backends.torch.train_step import (
    keep_keras_from_exchanging,
    refuse_wrapped_batch_norm,
    replace_steps,
    sharded_function,
)


class TorchBackend(Backend):
    """One process per device; gradients are exchanged while the backward pass still runs."""

    name = "torch"

    def __init__(self):
        super().__init__()
        self.collectives = None
        self.exchange = None
        self._num_calls = 0

    def _start_runtime(self):
        runtime.use_local_device(self.cluster)
        if self.cluster.num_workers == 1:
            return
        step.install()
        batch_norm.install()
        keep_keras_from_exchanging()
        self._host, self.collectives = runtime.connect(self)
        self.exchange = GradientExchange(self.collectives, self._host, self.cluster.num_workers)

    def _stop_runtime(self):
        for each in (self.collectives, self._host):
            if isinstance(each, ProcessGroupCollectives | HostCollectives):
                each.close()

    def num_local_devices(self):
        return max(1, torch.cuda.device_count())

    @torch.compiler.disable
    def all_reduce_in_step(self, vector, has_rows):
        """Sums a float32 vector over the workers that have rows, inside a step."""
        mine = vector.detach().cpu().numpy()
        total = self._host.all_reduce(mine if has_rows else np.zeros_like(mine))
        return torch.from_numpy(total).to(vector.device)

    def mean_in_step(self, tensor, share):
        """Sums `share * tensor` over the workers, inside a step, with its gradient (see `batch_norm`)."""
        return MeanOverRows.apply(tensor, share, self)

    @torch.compiler.disable
    def sum_of_tensor(self, tensor, weight):
        """Returns the sum of `weight * tensor` over the workers, as a new tensor."""
        if tensor.device.type == "cpu":
            mine = tensor.detach().numpy() * weight if weight else np.zeros(tensor.shape)
            return torch.from_numpy(self._host.all_reduce(mine.astype(np.float64))).to(tensor.dtype)
        total = torch.empty(tensor.numel(), dtype=accumulation_dtype(tensor.dtype), device=tensor.device)
        self.collectives.finish(self.collectives.start_sum([tensor], total, weight))
        return total.view(tensor.shape).to(tensor.dtype)

    @torch.compiler.disable
    def gather_rows(self, tensor):
        """Returns the rows that every worker has in `tensor`, in rank order."""
        return gather_rows(tensor, self._host)

    def shard(self, source):
        return shard_adapter(source, self)

    def connect(self, model):
        if syncs_batch_norm(model):
            refuse_wrapped_batch_norm(model)
        if "train_step" not in vars(model):
            replace_steps(model, self)
        for optimizer in optimizers_of(model):
            connect_optimizer(optimizer, self.exchange)

    @torch.compiler.disable
    def takes_over(self, optimizer, variables):
        connect_optimizer(optimizer, self.exchange)
        if step.current_step() is None:
            custom_loops.refuse_differing_weights(variables, self)
        return True

    def build(self, model, adapter, training=True):
        # Keras' own `predict` draws nothing to build by; its `fit` and `evaluate` do.
        with contextlib.nullcontext() if training else random_streams.undone():
            build_model(model, adapter.global_batches(), training)

    def begin_own_stream(self):
        random_streams.begin_own(self)

    @contextlib.contextmanager
    def calling(self, model):
        self._num_calls += 1
        try:
            is_outermost = self._num_calls == 1 and self.cluster.num_workers > 1
            with random_streams.own_stream(self) if is_outermost else contextlib.nullcontext():
                yield
        finally:
            self._num_calls -= 1

    def trying_once(self):
        is_done = False

        @torch.compiler.disable
        def try_once(trial, judge):
            nonlocal is_done
            if not is_done and step.current_step().num_local_rows > 0:
                is_done = True
                judge(*(tensor.detach().cpu().numpy() for tensor in trial()))

        return try_once

    def sharded_function(self, function):
        return sharded_function(function, self.cluster)

    def is_tracing(self):
        # Between steps the metrics are exchanged, inside a step nobody reads them: eager as PyTorch is.
        return step.current_step() is not None


class MeanOverRows(torch.autograd.Function):
    """The mean over the rows of all workers, whose gradient is the mean of the workers' gradients."""

    @staticmethod
    def forward(ctx, tensor, share, backend):
        ctx.share, ctx.backend = share, backend
        return backend.sum_of_tensor(tensor, share)

    @staticmethod
    def backward(ctx, gradient):
        return MeanOverRows.apply(gradient, ctx.share, ctx.backend), None, None
