"""Binds a strategy to a model: the model's own methods, called with this worker's share.

Methods are bound on the instance, never on its class, so that saving and loading stay Keras' own. Each bound
method does three things around Keras' original: it replaces inputs by sharded adapters, it keeps on the
chief what one worker does for all, and it makes results those of the global batch.
"""

import contextlib
import functools
import inspect
import os
import pathlib
import shutil
import types
import weakref

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope

from trireme.backends import accumulators, fitting, metric_checks, metrics
from trireme.backends.adapters import choose_source, parts_of, split_validation
from trireme.backends.agreement import compare_batch, compare_sources
from trireme.backends.callbacks import for_this_worker
from trireme.backends.model_state import broadcast_state
from trireme.backends.parameter_server.adoption import adopt as adopt_by_servers
from trireme.backends.step import is_alone

_VERIFY = "TRIREME_VERIFY"
_ADOPTED_BY = "_trireme_strategy"
_FOLLOWED = "_trireme_followed"
# By identity, as Keras' layers compare.
_adopted = weakref.WeakSet()
_BELOW = "_trireme_below_"
_KERAS_OWN = "_trireme_original"
_ADAPTER_OPTIONS = ("batch_size", "steps_per_epoch", "shuffle", "class_weight")


def adopt(model, strategy):
    """Makes `model` train, evaluate and predict by `strategy`. Harmless to repeat.

    With one replica all of that is Keras' own; its `fit` is followed, so that it can be backed up.

    Args:
        model: a `keras.Model`, compiled or not.
        strategy: the strategy in whose scope the model was made or compiled.
    """
    if strategy.is_asynchronous:
        adopt_by_servers(model, strategy)
        return
    if _ADOPTED_BY in vars(model):
        return
    if strategy.num_replicas_in_sync == 1:
        _follow(model, strategy.backend)
        return
    if _FOLLOWED in vars(model):
        # Made in the scope of a strategy with one replica, and compiled in another's.
        for name in ("fit", _FOLLOWED):
            object.__delattr__(model, name)
    object.__setattr__(model, _ADOPTED_BY, strategy)
    _adopted.add(model)
    for method in (_fit, _evaluate, _predict, _train_on_batch, _test_on_batch, _predict_on_batch):
        _bind(model, strategy.backend, method)
    if strategy.cluster.num_workers > 1:
        for name in ("save", "save_weights"):
            object.__setattr__(model, name, _written_aside(getattr(model, name), strategy.cluster.rank))
    if not strategy.backend.sees_global_batch:
        _bind_metrics(model, strategy.backend)


def strategy_of(model):
    """Returns the strategy that has adopted `model`, or None."""
    return vars(model).get(_ADOPTED_BY)


def adopted_models():
    """Returns the adopted models that still exist."""
    return list(_adopted)


def syncs_batch_norm(model):
    """Whether the strategy of `model` takes batch statistics over all replicas."""
    return getattr(strategy_of(model), "sync_batch_norm", False)


def _bind(model, backend, method):
    name = method.__name__.removeprefix("_")
    owner = next(base for base in keras.Model.__mro__ if name in vars(base))
    keras_own = getattr(vars(owner)[name], _KERAS_OWN, vars(owner)[name])
    bound = _around(types.MethodType(keras_own, model), model, backend, method)
    if getattr(type(model), name) is vars(owner)[name]:
        object.__setattr__(model, name, bound)
        return
    # The method of a subclass, which may prepare its arguments first, stays in front; Keras' own is found below it.
    object.__setattr__(model, _BELOW + name, bound)
    if keras_own is vars(owner)[name]:
        setattr(owner, name, _dispatching(keras_own, name))


def _dispatching(keras_own, name):
    @functools.wraps(keras_own)
    def method(self, *args, **kwargs):
        return vars(self).get(_BELOW + name, types.MethodType(keras_own, self))(*args, **kwargs)

    setattr(method, _KERAS_OWN, keras_own)
    return method


def _around(original, model, backend, method):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def bound(*args, **kwargs):
        if is_alone():
            backend.connect(model)
            return original(*args, **kwargs)
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        # What a signature collects in `**kwargs` is one argument here; spread it again.
        arguments.update(arguments.pop("kwargs", {}))
        with backend.calling(model):
            backend.connect(model)
            if not backend.sees_global_batch:
                metric_checks.watch(model, backend)
            return method(model, backend, original, arguments)

    return bound


def _follow(model, backend):
    if _FOLLOWED in vars(model) or backend.cluster.num_workers > 1:
        # One replica in each of several workers: models that know nothing of each other have no common state.
        return
    original = model.fit
    signature = inspect.signature(original)
    takes_options = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())

    @functools.wraps(original)
    def fit(*args, **kwargs):
        if "callbacks" in signature.parameters:
            bound = signature.bind(*args, **kwargs)
            with fitting.followed(model, backend, bound.arguments):
                return original(*bound.args, **bound.kwargs)
        # A `fit` of the user's own, around Keras' or instead of it.
        with fitting.followed(model, backend, kwargs) if takes_options else contextlib.nullcontext():
            return original(*args, **kwargs)

    object.__setattr__(model, "fit", fit)
    object.__setattr__(model, _FOLLOWED, True)


def _fit(model, backend, original, arguments):
    if _VERIFY in os.environ:
        _verify_instead(model, arguments)
    x, y, sample_weight = (arguments.pop(name, None) for name in ("x", "y", "sample_weight"))
    split = arguments.pop("validation_split", 0.0)
    if split and arguments.get("validation_data") is None:
        (x, y, sample_weight), arguments["validation_data"] = split_validation(x, y, sample_weight, split)
    options = {name: arguments.get(name) for name in _ADAPTER_OPTIONS}
    options["shuffle"] = arguments.get("shuffle", True)
    arguments["x"] = _sharded(backend, x, y, sample_weight, **options)
    # The adapter has taken care of these; Keras refuses some of them beside an adapter.
    for name in ("batch_size", "class_weight"):
        arguments.pop(name, None)
    if arguments.get("validation_data") is not None:
        arguments["validation_data"] = _sharded_validation(backend, arguments, options["batch_size"])
    _start(model, backend, arguments, during_fit=True)
    with fitting.followed(model, backend, arguments):
        history = original(**arguments)
    _finish(model, backend)
    return history


def _verify_instead(model, arguments):
    """Ends the script with a report on its model: `trireme check --verify` has started it for that."""
    from trireme.backends.verification import verify

    strategy = strategy_of(model)
    found = verify(
        model,
        strategy,
        **{name: arguments.get(name) for name in ("x", "y", "sample_weight", "batch_size", "class_weight")},
    )
    if strategy.cluster.is_chief:
        pathlib.Path(os.environ[_VERIFY]).write_text(f"{found.verdict}\n{found}\n", encoding="utf-8")
    raise SystemExit(0)


def _sharded_validation(backend, arguments, batch_size):
    x, y, sample_weight = parts_of(arguments["validation_data"])
    batch_size = arguments.pop("validation_batch_size", None) or batch_size
    steps = arguments.get("validation_steps")
    options = {"batch_size": batch_size, "steps_per_epoch": steps}
    return (_sharded(backend, x, y, sample_weight, name="validation_data", **options),)


def _sharded(backend, x, y=None, sample_weight=None, **options):
    source = choose_source(x, y, sample_weight, cluster=backend.cluster, **options)
    compare_sources(source, backend)
    return backend.shard(source)


def _evaluate(model, backend, original, arguments):
    if arguments.get("_use_cached_eval_dataset"):
        # Keras' fit evaluates between two epochs: inputs, callbacks and variables are as they must be.
        return original(**arguments)
    x, y, sample_weight = (arguments.pop(name, None) for name in ("x", "y", "sample_weight"))
    batch_size, steps = arguments.pop("batch_size", None), arguments.get("steps")
    arguments["x"] = _sharded(backend, x, y, sample_weight, batch_size=batch_size, steps_per_epoch=steps)
    _start(model, backend, arguments)
    logs = original(**arguments)
    _finish(model, backend)
    return logs


def _predict(model, backend, original, arguments):
    batch_size, steps = arguments.pop("batch_size", None), arguments.get("steps")
    arguments["x"] = _sharded(backend, arguments.pop("x"), batch_size=batch_size, steps_per_epoch=steps)
    _start(model, backend, arguments, training=False)
    return original(**arguments)


def _train_on_batch(model, backend, original, arguments):
    return _on_batch(model, backend, original, arguments, "train_function")


def _test_on_batch(model, backend, original, arguments):
    return _on_batch(model, backend, original, arguments, "test_function")


def _on_batch(model, backend, original, arguments, function_name):
    return_dict = arguments.pop("return_dict", False)
    _compare_batches(backend, arguments, function_name)
    if not backend.sees_global_batch:
        metrics.make_local(model, backend)
        if function_name == "train_function":
            accumulators.make_local(model, backend)
    with backend.sharding_batches(model, function_name):
        logs = original(**arguments, return_dict=True)
    if not backend.sees_global_batch:
        logs = {name: float(value) for name, value in model._get_metrics_result_or_logs(logs).items()}
    _finish(model, backend)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def _predict_on_batch(model, backend, original, arguments):
    _compare_batches(backend, arguments, "predict_function")
    with backend.sharding_batches(model, "predict_function"):
        return original(**arguments)


def _compare_batches(backend, arguments, function_name):
    if backend.cluster.num_workers > 1:
        batch = [arguments.get(name) for name in ("x", "y", "sample_weight")]
        compare_batch(batch, function_name.replace("function", "on_batch"), backend)


def _start(model, backend, arguments, during_fit=False, training=True):
    """What comes before `fit`, `evaluate` and `predict`: equal variables, one side effect, one decision."""
    if backend.cluster.num_workers > 1:
        if during_fit:
            # An interrupted `fit` has left them to each worker.
            accumulators.make_global(model, backend)
        backend.build(model, arguments["x"], training)
        if not backend.sees_global_batch:
            # Building has made those that were given by their names or classes.
            metric_checks.watch(model, backend)
        broadcast_state(model, backend)
        callbacks = for_this_worker(arguments.get("callbacks"), backend, during_fit)
        arguments["callbacks"] = callbacks
        if not backend.cluster.is_chief:
            arguments["verbose"] = 0
    if not backend.sees_global_batch:
        metrics.make_local(model, backend)


def _finish(model, backend):
    if not backend.sees_global_batch:
        metrics.make_global(model, backend)
        accumulators.make_global(model, backend)


def _bind_metrics(model, backend):
    own_result = model.get_metrics_result
    own_result_or_logs = model._get_metrics_result_or_logs

    @functools.wraps(own_result)
    def get_metrics_result():
        # While Keras builds a model from shapes alone there is nothing to exchange.
        if backend.is_tracing() or is_alone() or in_stateless_scope():
            return own_result()
        return metrics.global_metrics(model, backend, own_result)

    @functools.wraps(own_result_or_logs)
    def get_metrics_result_or_logs(logs):
        result = own_result_or_logs(logs)
        if result is not logs or not logs or is_alone():
            return result
        # Keras gives the last step's logs back where they are not all the metrics': a step of the user's own.
        of_metrics = {name: value for name, value in model.get_metrics_result().items() if name in logs}
        rest = {name: value for name, value in logs.items() if name not in of_metrics}
        return {**of_metrics, **metrics.mean_logs(rest, backend)} if rest else of_metrics

    object.__setattr__(model, "get_metrics_result", get_metrics_result)
    object.__setattr__(model, "_get_metrics_result_or_logs", get_metrics_result_or_logs)


def _written_aside(original, rank):
    """Makes a method that writes a file or a folder write it aside first and put it in place whole.

    Every worker may write the same path, and any of them may read it right afterwards.
    """

    @functools.wraps(original)
    def bound(filepath, *args, **kwargs):
        path = pathlib.Path(filepath)
        # The name keeps its endings: Keras chooses the format by them.
        aside = path.with_name(f".worker-{rank}.{path.name}")
        original(aside, *args, **kwargs)
        if aside.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        os.replace(aside, path)

    return bound
