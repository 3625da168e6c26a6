"""Binds a `ParameterServerStrategy` to a model: its own methods, on rows that the servers hand out.

Methods are bound on the instance, never on its class, so that saving and loading stay Keras' own.
"""

import contextlib
import functools
import inspect
import math
import warnings

import keras
import numpy as np

from trireme.backends.adapters import choose_source, parts_of, split_validation
from trireme.backends.build import build_model
from trireme.backends.parameter_server.callbacks import Follower, for_this_worker, users_callbacks
from trireme.backends.parameter_server.data import ranged
from trireme.backends.parameter_server.plan import Plan
from trireme.backends.parameter_server.reports import STOP, Report, mean_staleness, take_totals
from trireme.backends.step import install
from trireme.errors import UsageError

_ADOPTED_BY = "_trireme_strategy"
_ADAPTER_OPTIONS = ("batch_size", "steps_per_epoch", "shuffle", "class_weight")
_NO_SINGLE_BATCHES = ("train_on_batch", "test_on_batch", "predict_on_batch")


def adopt(model, strategy):
    """Makes `model` train, evaluate and predict by a `ParameterServerStrategy`. Harmless to repeat."""
    if _ADOPTED_BY not in vars(model):
        object.__setattr__(model, _ADOPTED_BY, strategy)
        _Adopted(model, strategy)


class _Adopted:
    """Stands between the user's calls of a model's methods and Keras' own."""

    def __init__(self, model, strategy):
        self._model = model
        self._strategy = strategy
        self._side = strategy.side
        self._originals = {name: getattr(model, name) for name in ("fit", "evaluate", "predict")}
        # The round whose steps run, and whether it trains; what validation during `fit` needs.
        self._is_training = None
        self._plan = None
        self._validation = None
        for name in self._originals:
            self._bind(name)
        for name in _NO_SINGLE_BATCHES:
            object.__setattr__(model, name, functools.partial(_refuse_single_batches, name))
        self._bind_results()
        shares_batches = strategy.max_staleness == 0
        if shares_batches:
            # Not every backend needs it for its synchronous steps.
            install()
        self._side.replace_steps(model, (lambda: self._rounds.share_of_batch()) if shares_batches else None)

    @property
    def _exchange(self):
        return self._strategy.exchange

    @property
    def _rounds(self):
        return self._exchange.rounds

    def _fit(self, arguments):
        callbacks = users_callbacks(arguments.get("callbacks"))
        adapter = self._training_adapter(arguments)
        build_model(self._model, iter([adapter.spec()]), training=True)
        current_round = self._strategy.connect(self._model)
        self._take_optimizers_part()
        self._plan = plan = Plan(
            self._rounds.number,
            arguments.get("initial_epoch") or 0,
            arguments.get("epochs", 1),
            current_round,
        )

        def begin(epoch):
            self._is_training = True
            number = plan.training_round(epoch)
            self._hand_over(number)
            return adapter.begin(self._exchange, self._report(), number, f"train in epoch {epoch}")

        if not self._exchange.is_chief:
            plan.begin_next(begin)
        follower = Follower(self._exchange, begin, self._take_newest, plan)
        arguments |= {
            "x": adapter,
            "initial_epoch": plan.next_epoch,
            "callbacks": for_this_worker(callbacks, follower, self._exchange.is_chief),
        }
        try:
            history = self._originals["fit"](**self._quiet(arguments))
        finally:
            self._plan = self._validation = self._is_training = None
        self._end_fit(plan)
        return history

    def _take_optimizers_part(self):
        """Leaves to the servers what the optimizer would do with variables that are theirs."""
        optimizer = self._model.optimizer

        def save_own_variables(store):
            # Keras skips a state of another length, with a warning, where one of empty slots would be taken for real.
            store["0"] = keras.ops.convert_to_numpy(optimizer.iterations)

        object.__setattr__(optimizer, "save_own_variables", save_own_variables)
        # The averages of `use_ema` are on the servers, which are told when to take them.
        object.__setattr__(optimizer, "finalize_variable_values", lambda var_list: None)

    def _training_adapter(self, arguments):
        """Returns the adapter of the rows to train on; takes from `arguments` what Keras is not to see."""
        x, y, sample_weight = (arguments.pop(name, None) for name in ("x", "y", "sample_weight"))
        split = arguments.pop("validation_split", 0.0)
        if split and arguments.get("validation_data") is None:
            (x, y, sample_weight), arguments["validation_data"] = split_validation(x, y, sample_weight, split)
        options = {name: arguments.pop(name, None) for name in _ADAPTER_OPTIONS}
        shuffle = True if options["shuffle"] is None else options["shuffle"]
        if options["steps_per_epoch"] is not None:
            raise UsageError(
                f"steps_per_epoch is {options['steps_per_epoch']}: with ParameterServerStrategy an epoch is every row "
                "once. Leave it out, or pass fewer rows."
            )
        inner = choose_source(x, y, sample_weight, **(options | {"shuffle": shuffle})).adapter
        if arguments.get("validation_data") is not None:
            self._validation = self._validation_adapter(arguments, options["batch_size"])
            arguments["validation_data"] = (self._validation,)
        return ranged(inner, self._strategy, shuffle, is_training=True)

    def _validation_adapter(self, arguments, batch_size):
        x, y, sample_weight = parts_of(arguments["validation_data"])
        batch_size = arguments.pop("validation_batch_size", None) or batch_size
        steps = arguments.pop("validation_steps", None)
        options = {"batch_size": batch_size, "steps_per_epoch": steps}
        inner = choose_source(x, y, sample_weight, name="validation_data", **options).adapter
        return ranged(inner, self._strategy, max_batches=steps)

    def _end_fit(self, plan):
        exchange = self._exchange
        if exchange.is_chief and self._model.optimizer.use_ema:
            # On one device the averages become the weights at the end of `fit`.
            exchange.configure({"finalized": plan.last_round})
        self._hand_over(plan.last_round)
        self._rounds.meet(plan.last_round, "end fit")
        self._rounds.number = plan.last_round + 1
        self._take_newest()

    def _evaluate(self, arguments):
        if arguments.get("_use_cached_eval_dataset"):
            epoch = self._plan.next_epoch - 1
            what = f"validate after epoch {epoch}"
            number = self._plan.validation_round(epoch)
            return self._evaluate_round(self._validation, number, what, arguments)[1]
        x, y, sample_weight = (arguments.pop(name, None) for name in ("x", "y", "sample_weight"))
        batch_size, steps = arguments.pop("batch_size", None), arguments.pop("steps", None)
        inner = choose_source(x, y, sample_weight, batch_size=batch_size, steps_per_epoch=steps).adapter
        arguments = self._quiet(arguments)
        if self._exchange is not None and self._plan is None:
            adapter = ranged(inner, self._strategy, max_batches=steps)
            number = self._rounds.number
            is_shared, logs = self._evaluate_round(adapter, number, "evaluate", arguments | {"x": adapter})
            self._rounds.number = number + 1
            if is_shared:
                return logs
        # Alone: nothing is on the servers yet, a callback of `fit` asks, whose rounds are counted out, or the others
        # have been through this while this worker was away.
        with self._in_round(None):
            return self._originals["evaluate"](x=inner, steps=steps, **arguments)

    def _evaluate_round(self, adapter, number, what, arguments):
        with self._in_round(False):
            is_shared = adapter.begin(self._exchange, self._report(), number, what)
            return is_shared, self._originals["evaluate"](**arguments)

    @contextlib.contextmanager
    def _in_round(self, is_training):
        was_training, self._is_training = self._is_training, is_training
        try:
            yield
        finally:
            self._is_training = was_training

    def _predict(self, arguments):
        return self._originals["predict"](**self._quiet(arguments))

    def _report(self):
        return Report(self._model, self._side, self._exchange.client, self._is_training)

    def _hand_over(self, number):
        """Before round `number`: weights that the script has set, on the chief, become those of the servers."""
        if self._exchange.leads(number):
            variables = self._exchange.description.variables
            self._exchange.assign([keras.ops.convert_to_numpy(variable) for variable in variables], number)

    def _take_newest(self):
        for variable, value in zip(
            self._exchange.description.variables, self._exchange.refresh(), strict=True
        ):
            variable.assign(value)
        iterations = self._model.optimizer._iterations
        iterations.assign(np.asarray(self._exchange.num_updates, iterations.dtype))

    def _quiet(self, arguments):
        return arguments if self._strategy.cluster.is_chief else arguments | {"verbose": 0}

    def _bind(self, name):
        original, method = self._originals[name], getattr(self, f"_{name}")
        signature = inspect.signature(original)

        @functools.wraps(original)
        def bound(*args, **kwargs):
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            # What a signature collects in `**kwargs` is one argument here; spread it again.
            arguments.update(arguments.pop("kwargs", {}))
            with warnings.catch_warnings():
                # A round ends when the servers say so, which to Keras looks like an input that is too short.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
                try:
                    return method(arguments)
                except Exception:
                    if self._exchange is not None and self._exchange.failure is not None:
                        raise self._exchange.failure from None
                    raise

        object.__setattr__(self._model, name, bound)

    def _bind_results(self):
        """At the end of an epoch and of an evaluation, metrics are those of all workers."""
        model, original = self._model, self._model._get_metrics_result_or_logs

        @functools.wraps(original)
        def get_metrics_result_or_logs(logs):
            if self._is_training is None:
                return original(logs)
            self._rounds.finish()
            totals = self._rounds.totals
            if totals:
                take_totals(model, totals, self._is_training)
            result = dict(original(logs))
            if self._is_training:
                self._plan.next_epoch += 1
                self._take_newest()
                result["staleness"] = mean_staleness(totals) if totals else math.nan
                model.stop_training = model.stop_training or bool(totals.get(STOP, 0) > 0)
            # The servers remember some rounds: a worker that was away for longer does not learn what became of them.
            return result if totals else dict.fromkeys(result, math.nan)

        object.__setattr__(model, "_get_metrics_result_or_logs", get_metrics_result_or_logs)


def _refuse_single_batches(name, *args, **kwargs):
    raise UsageError(
        f"{name} has no meaning with ParameterServerStrategy, where the servers hand out the rows: use fit, evaluate "
        "and predict, or MirroredStrategy."
    )
