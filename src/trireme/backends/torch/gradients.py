"""How the workers' gradients become their mean over the global batch, while the backward pass still runs.

PyTorch tells when the gradient of a parameter is complete. As soon as those of a bucket are, its exchange begins;
`optimizer.apply` waits for the last one. For that it must be known *before* a backward pass which variables the
next `apply` will be given. Training repeats itself, so the n-th `apply` of a step is expected to take the variables
that it took in the step before. A wrong guess costs time and never the numbers: whatever was exchanged for nothing is
exchanged by all workers, and `apply` exchanges what it was really given.

Two things may differ from worker to worker, because they can depend on the rows: which variables have no gradient,
and whether a gradient was changed between the backward pass and `apply`. So every `apply` tells the others about both.
"""

import contextlib

import numpy as np
import torch

from trireme.backends.buckets import plan_buckets
from trireme.backends.torch.collectives import accumulation_dtype

_IS_WATCHED = "_trireme_is_watched"


def around_compiled(function):
    """Returns `function` running as it is where Keras, told so by `jit_compile=True`, compiles what it calls."""
    return torch.compiler.disable(function, recursive=False)


class GradientExchange:
    """Exchanges the gradients of this process' models. One exchange is under way at a time.

    Args:
        collectives: the collectives on tensors.
        host: the collectives on NumPy arrays.
        num_workers: workers in the exchange.
    """

    def __init__(self, collectives, host, num_workers):
        self._collectives = collectives
        self._host = host
        self._outside_weight = 1 / num_workers
        self._weight = None
        self._expected = []
        self._applied = []
        self._begun = None

    @contextlib.contextmanager
    def step(self, history, weight):
        """Surrounds a training step, in which gradients may be exchanged before `apply` asks for them.

        Args:
            history: list that belongs to the model; what this step applies is kept there for the next.
            weight: this worker's share of the rows.
        """
        self._drop_begun()
        outer = self._expected, self._applied, self._weight
        self._expected, self._applied, self._weight = list(history), [], weight
        self._begin_expected()
        try:
            yield
            self._drop_begun()
            history[:] = self._applied
        finally:
            self._begun = None
            self._expected, self._applied, self._weight = outer

    def uncompiled(self, function):
        """See `trireme.backends.optimizers`."""
        return around_compiled(function)

    @torch.compiler.disable
    @torch.no_grad()
    def mean(self, gradients, variables, memory):
        """See `trireme.backends.optimizers`.

        The mean of a gradient that no worker has is None; a worker without it counts as zeros.
        """
        plan = self._plan(variables, memory)
        if self._begun is not None and self._begun.plan is not plan:
            self._drop_begun()
        exchange, self._begun = self._begun or self._new_exchange(plan), None
        exchange.finish(gradients)
        is_there = np.array([gradient is not None for gradient in gradients])
        told = np.append(is_there, exchange.is_outdated(gradients)).astype(np.uint8)
        told = self._host.all_reduce(told, "max")
        if told[-1]:
            self._new_exchange(plan).finish(gradients)
            plan.changes_after_backward = True
        self._applied.append(plan)
        self._begin_expected()
        return plan.sums(told[:-1])

    @torch.compiler.disable
    @torch.no_grad()
    def part_of_mean(self, gradients, variables, memory):
        """See `trireme.backends.optimizers`. None stays None where no worker has a gradient."""
        weight = self._own_weight()
        is_there = self._host.all_reduce(np.array([g is not None for g in gradients], np.uint8), "max")
        parts = []
        for gradient, variable, is_there_somewhere in zip(gradients, variables, is_there, strict=True):
            if not is_there_somewhere:
                parts.append(None)
            elif gradient is None or weight == 0:
                parts.append(torch.zeros_like(variable.value))
            else:
                parts.append(gradient * weight)
        return parts

    @torch.compiler.disable
    @torch.no_grad()
    def sum(self, gradients):
        """See `trireme.backends.optimizers`."""
        self._drop_begun()
        plan = Plan(gradients, self._collectives.first_bucket_bytes)
        _Exchange(plan, self._collectives, 1.0).finish(gradients)
        return plan.sums([True] * len(gradients))

    @torch.compiler.disable
    def is_finite_everywhere(self, is_finite):
        """See `trireme.backends.optimizers`."""
        is_bad = self._own_weight() > 0 and not bool(is_finite)
        return torch.tensor(self._host.all_reduce(np.array([is_bad], np.uint8), "max")[0] == 0)

    def _plan(self, variables, plans):
        """Returns the `Plan` by which gradients of these Keras variables travel, and watches their gradients."""
        parameters = [variable.value for variable in variables]
        # The plan holds the tensors, so that no identity is used again meanwhile.
        key = tuple(id(parameter) for parameter in parameters)
        if key not in plans:
            plans[key] = Plan(parameters, self._collectives.first_bucket_bytes)
            for parameter in parameters:
                if parameter.requires_grad and parameter.is_leaf and not hasattr(parameter, _IS_WATCHED):
                    setattr(parameter, _IS_WATCHED, True)
                    parameter.register_post_accumulate_grad_hook(self._gradient_is_complete)
        return plans[key]

    def _own_weight(self):
        return self._outside_weight if self._weight is None else self._weight

    @torch.compiler.disable
    def _begin_expected(self):
        position = len(self._applied)
        if not self._collectives.runs_aside:
            return
        if position < len(self._expected) and not self._expected[position].changes_after_backward:
            self._begun = self._new_exchange(self._expected[position])

    @torch.compiler.disable
    def _drop_begun(self):
        # To its end, since other workers may have started more of it than this one.
        if self._begun is not None:
            self._begun.finish()
            self._begun = None

    def _new_exchange(self, plan):
        return _Exchange(plan, self._collectives, self._own_weight())

    @torch.compiler.disable
    def _gradient_is_complete(self, parameter):
        if self._begun is not None:
            self._begun.take(parameter)


class Plan:
    """In which buckets the gradients of some parameters travel, and the memory they travel in.

    Attributes:
        parameters: PyTorch tensors with the shapes, dtypes and devices of the gradients.
        buckets: lists of indices into `parameters`, in the order of their exchange.
        totals: a vector for each bucket.
        changes_after_backward: whether gradients do not stay as the backward pass makes them, so that an exchange
            before `apply` is in vain.
    """

    def __init__(self, parameters, first_bucket_bytes):
        self.parameters = list(parameters)
        kinds = [(accumulation_dtype(p.dtype), p.device) for p in self.parameters]
        num_bytes = [p.numel() * kind[0].itemsize for p, kind in zip(self.parameters, kinds, strict=True)]
        self.buckets = plan_buckets(num_bytes, kinds, first_bucket_bytes)
        self.totals = []
        for bucket in self.buckets:
            dtype, device = kinds[bucket[0]]
            num_values = sum(self.parameters[index].numel() for index in bucket)
            self.totals.append(torch.zeros(num_values, dtype=dtype, device=device))
        self.index_of = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self.changes_after_backward = False

    def sums(self, is_there):
        """Returns what an exchange has left in `totals` as a list of gradients, None where `is_there` is 0.

        They share the memory of `totals` and last until the next exchange.
        """
        result = [None] * len(self.parameters)
        for bucket, total in zip(self.buckets, self.totals, strict=True):
            parts = total.split([self.parameters[index].numel() for index in bucket])
            for index, part in zip(bucket, parts, strict=True):
                if is_there[index]:
                    parameter = self.parameters[index]
                    result[index] = part.view(parameter.shape).to(parameter.dtype)
        return result


class _Exchange:
    """One sum of the gradients of a plan over the workers, bucket by bucket, in the same order on all of them."""

    def __init__(self, plan, collectives, weight):
        self.plan = plan
        self._collectives = collectives
        self._weight = weight
        # What was taken from the backward pass: the gradient and which of its versions.
        self._taken = {}
        self._num_missing = [len(bucket) for bucket in plan.buckets]
        self._bucket_of = {index: number for number, bucket in enumerate(plan.buckets) for index in bucket}
        self._sums = []
        self._num_started_early = 0

    def take(self, parameter):
        """Takes the gradient that a backward pass has completed, and starts what can be started."""
        index = self.plan.index_of.get(id(parameter))
        if index is None or index in self._taken:
            return
        self._taken[index] = (parameter.grad, parameter.grad._version)
        self._num_missing[self._bucket_of[index]] -= 1
        while len(self._sums) < len(self._num_missing) and self._num_missing[len(self._sums)] == 0:
            self._start_next(lambda index: self._taken[index][0])

    def finish(self, gradients=None):
        """Starts what has not been started, with `gradients` or zeros, and waits for everything."""
        self._num_started_early = len(self._sums)
        while len(self._sums) < len(self.plan.buckets):
            self._start_next(lambda index: None if gradients is None else gradients[index])
        for each in self._sums:
            self._collectives.finish(each)

    def is_outdated(self, gradients):
        """Returns whether something was exchanged that is not what `gradients` holds."""
        early = [index for bucket in self.plan.buckets[: self._num_started_early] for index in bucket]
        return not all(self._is_as_taken(index, gradients[index]) for index in early)

    def _is_as_taken(self, index, gradient):
        taken, version = self._taken[index]
        return gradient is taken and gradient._version == version

    def _start_next(self, gradient_of):
        number = len(self._sums)
        bucket, total = self.plan.buckets[number], self.plan.totals[number]
        tensors = [self._or_zeros(gradient_of(index), index, total) for index in bucket]
        self._sums.append(self._collectives.start_sum(tensors, total, self._weight))

    def _or_zeros(self, gradient, index, total):
        if gradient is not None:
            return gradient
        return torch.zeros((), dtype=total.dtype, device=total.device).expand(
            self.plan.parameters[index].shape
        )
