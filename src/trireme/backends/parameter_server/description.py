"""What the chief tells the servers about a model and its optimizer, and which models cannot be trained like that."""

import dataclasses
import warnings

import keras
import numpy as np
from keras import optimizers

from trireme.backends.parameter_server.embedding import is_anchor, remote_embeddings
from trireme.errors import UsageError
from trireme.parameter_server import MinSizePartitioner, VariableSpec, place

# Optimizers that treat each entry of a variable by itself, so that a variable may be cut and updated by rows.
_ENTRY_BY_ENTRY = (
    optimizers.SGD,
    optimizers.RMSprop,
    optimizers.Adam,
    optimizers.AdamW,
    optimizers.Adadelta,
    optimizers.Adagrad,
    optimizers.Adamax,
    optimizers.Nadam,
    optimizers.Ftrl,
    optimizers.Lion,
)
_ROW_BY_ROW_INITIALIZERS = ("Zeros", "Ones", "Constant", "RandomNormal", "RandomUniform", "TruncatedNormal")


@dataclasses.dataclass(frozen=True)
class Description:
    """A model as the servers need to know it.

    Attributes:
        placement: which server holds what.
        names: for each of `variables`, its name on the servers.
        variables: the trainable variables that workers hold.
        tables: the remote embedding layers, by the name of their table.
        settings: of the updaters.
        learning_rate: the optimizer's, None for a schedule.
        clipnorm: workers clip each variable's gradient to this norm before they push it, or None.
        global_clipnorm: the same for all gradients together.
    """

    placement: object
    names: list
    variables: list
    tables: dict
    settings: dict
    learning_rate: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None


def describe(model, num_servers, max_staleness, partitioner, seed):
    """Returns the `Description` of a built and compiled model.

    Raises:
        UsageError: the model, its optimizer and the strategy cannot work together; the message lists everything wrong.
    """
    optimizer = model.optimizer
    tables = remote_embeddings(model)
    problems = _problems(model, optimizer, max_staleness)
    if problems:
        raise _refused(problems)
    if optimizer.built and int(optimizer.iterations):
        warnings.warn(
            f"The optimizer has made {int(optimizer.iterations)} steps. The servers begin with a new one of its "
            "configuration: what it remembers of those steps (momentum, the place in a schedule) is not taken over.",
            stacklevel=2,
        )
    problems = _table_problems(optimizer, tables)
    variables = [v for v in model.trainable_variables if not is_anchor(v)]
    names = _distinct([variable.path for variable in variables])
    table_of = dict(zip(_distinct([f"{layer.path}/table" for layer in tables]), tables, strict=True))
    specs = [
        VariableSpec(name, tuple(v.shape), keras.backend.standardize_dtype(v.dtype))
        for name, v in zip(names, variables, strict=True)
    ]
    specs += [_table_spec(name, layer, seed) for name, layer in table_of.items()]
    whole = _kept_whole(optimizer, dict(zip(names, variables, strict=True)), max_staleness)
    placement = place(specs, num_servers, _partitioner(partitioner, whole, num_servers, problems))
    # A push is an update, so its worker knows all gradients of the update, which a server or a window does not.
    is_update = max_staleness != 0 and not optimizer.gradient_accumulation_steps
    clips_on_worker = is_update and num_servers + len(table_of) > 1
    problems += _clipping_problems(optimizer, num_servers, max_staleness, table_of)
    if problems:
        raise _refused(problems)
    config = keras.saving.serialize_keras_object(optimizer)
    clipping = {}
    if clips_on_worker:
        clipping = {name: config["config"].get(name) for name in ("clipnorm", "global_clipnorm")}
        config = {**config, "config": {**config["config"], **dict.fromkeys(clipping)}}
    facts = {
        name: {
            "is_table": False,
            "constraint": keras.constraints.serialize(v.constraint) if v.constraint is not None else None,
            "decays": bool(optimizer._use_weight_decay(v)),
        }
        for name, v in zip(names, variables, strict=True)
    }
    facts |= {name: {"is_table": True, "constraint": None, "decays": True} for name in table_of}
    settings = {"optimizer": config, "variables": facts}
    rate = learning_rate_of(optimizer)
    return Description(placement, names, variables, table_of, settings, rate, **clipping)


def learning_rate_of(optimizer):
    """Returns the learning rate that an optimizer has now, None for a schedule."""
    rate = optimizer._learning_rate
    is_variable = isinstance(rate, keras.Variable)
    return float(np.asarray(keras.ops.convert_to_numpy(rate))) if is_variable else None


def _problems(model, optimizer, max_staleness):
    if not isinstance(optimizer, optimizers.Optimizer):
        return ["the model has no optimizer: compile it with one"]
    problems = []
    if isinstance(optimizer, optimizers.LossScaleOptimizer):
        problems.append(
            "the optimizer is a LossScaleOptimizer (mixed_float16 makes one), whose scale belongs to workers and "
            "servers at once: use the policy mixed_bfloat16, or float32"
        )
    if type(optimizer).__name__ == "MultiOptimizer":
        problems.append(
            "a MultiOptimizer has an optimizer for each layer, of which servers know nothing: use one"
        )
    if type(optimizer).__module__ == "__main__":
        problems.append(
            f"the optimizer {type(optimizer).__name__} is defined in the script itself, where the servers cannot "
            "import it: put the class into a module"
        )
    if not model.trainable_variables:
        problems.append("the model has no trainable variables")
    if getattr(model, "steps_per_execution", 1) != 1:
        problems.append(
            f"steps_per_execution is {model.steps_per_execution}: each step is exchanged, leave it out"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in model.trainable_variables):
        problems.append("float8 layers overwrite variables with gradients, which servers do not do")
    if max_staleness == 0:
        problems += _loss_problems(model)
    return problems


def _loss_problems(model):
    losses = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
    return [
        f"with max_staleness=0 the loss {loss.name} with reduction={loss.reduction!r} would not give one device's "
        "numbers: use reduction='sum_over_batch_size'"
        for loss in losses
        if loss.reduction not in ("sum_over_batch_size", "mean")
    ]


def _table_problems(optimizer, tables):
    if not tables:
        return []
    problems = []
    names = ", ".join(layer.name for layer in tables)
    if not isinstance(optimizer, _ENTRY_BY_ENTRY):
        problems.append(
            f"{type(optimizer).__name__} looks at variables as a whole, so it cannot update {names} by rows: take one "
            f"of {', '.join(kind.__name__ for kind in _ENTRY_BY_ENTRY)}"
        )
    for option in ("use_ema", "gradient_accumulation_steps", "weight_decay"):
        if getattr(optimizer, option):
            problems.append(
                f"{option}={getattr(optimizer, option)!r} concerns rows without a gradient too, but {names} are "
                "updated by rows: leave it out, or raise the strategy's min_table_bytes"
            )
    for layer in tables:
        kind = type(layer.embeddings_initializer).__name__
        if kind not in _ROW_BY_ROW_INITIALIZERS:
            problems.append(
                f"{layer.name} begins with {kind}, which looks at the table as a whole: take one of "
                f"{', '.join(_ROW_BY_ROW_INITIALIZERS)}"
            )
    return problems


def _clipping_problems(optimizer, num_servers, max_staleness, tables):
    """In lock step an update is made of several pushes, and only servers see it; each sees its own variables."""
    if max_staleness != 0:
        if (
            optimizer.gradient_accumulation_steps
            and num_servers > 1
            and optimizer.global_clipnorm is not None
        ):
            return [
                "global_clipnorm with gradient_accumulation_steps takes one server, which sees all of an update: "
                "--servers 1"
            ]
        return []
    problems = []
    if optimizer.global_clipnorm is not None and (num_servers > 1 or tables):
        problems.append(
            f"global_clipnorm={optimizer.global_clipnorm} with max_staleness=0 takes one server and no table by rows, "
            "since the norm is over all variables: --servers 1, or clipnorm, which is for each variable"
        )
    if optimizer.clipnorm is not None and tables:
        problems.append(
            f"clipnorm={optimizer.clipnorm} with max_staleness=0 and tables by rows: use clipvalue"
        )
    return problems


def _kept_whole(optimizer, variables, max_staleness):
    """The names of variables that must not be cut, with the reason."""
    if not isinstance(optimizer, _ENTRY_BY_ENTRY):
        return dict.fromkeys(variables, f"{type(optimizer).__name__} looks at variables as a whole")
    if optimizer.clipnorm is not None and (max_staleness == 0 or optimizer.gradient_accumulation_steps):
        return dict.fromkeys(variables, "clipnorm is for a variable as a whole")
    return {name: "it has a constraint" for name, v in variables.items() if v.constraint is not None}


def _partitioner(users, whole, num_servers, problems):
    default = MinSizePartitioner(max_shards=num_servers)

    def count(variable):
        if variable.name not in whole:
            return (users or default)(variable)
        if users is not None and users(variable) > 1:
            problems.append(
                f"the variable_partitioner cuts {variable.name} into {users(variable)} parts, but "
                f"{whole[variable.name]}: have it return 1 for it"
            )
        return 1

    return count


def _table_spec(name, layer, seed):
    initializer = keras.initializers.serialize(layer.embeddings_initializer)
    dtype = keras.backend.standardize_dtype(layer.variable_dtype)
    shape = (layer.input_dim, layer.output_dim)
    return VariableSpec(name, shape, dtype, initializer={"initializer": initializer, "seed": seed})


def _distinct(names):
    """The names, those that occur again with their position."""
    return [name if names.count(name) == 1 else f"{name}#{index}" for index, name in enumerate(names)]


def _refused(problems):
    return UsageError("\n  - ".join(["ParameterServerStrategy cannot train this model:", *problems]))
