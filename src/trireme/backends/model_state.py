"""The variables of a model and its optimizers, made the same on every worker."""

import keras
import numpy as np

SEED_STATE = "seed_generator_state"
_KNOWN = "_trireme_known_variables"


def optimizers_of(model):
    """Returns the optimizers a model trains with: the compiled one and any it holds as an attribute."""
    held = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    compiled = [model.optimizer] if getattr(model, "optimizer", None) is not None else []
    return list({id(optimizer): optimizer for optimizer in compiled + held}.values())


def variables_of(model):
    """Returns the variables of a model and of the optimizers it trains with."""
    return [*model.variables, *(v for optimizer in optimizers_of(model) for v in optimizer.variables)]


def layer_state(model):
    """Returns the float variables that layers update by themselves in a step: batch statistics and the like.

    Frozen weights are not among them, nor is the state of a frozen layer.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if layer.trainable
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]


def broadcast_state(model, backend, always=False):
    """Gives every worker the chief's variables of `model` and its optimizers.

    Skipped when every variable has been through it before, unless `always`. Random layers then draw on each
    worker from a stream of its own, which follows from the chief's seed and the rank.
    """
    variables = variables_of(model)
    known = {id(variable) for variable in variables}
    if not always and known <= getattr(model, _KNOWN, set()):
        return
    # The model keeps the variables alive by itself, so that no identity is used again meanwhile.
    object.__setattr__(model, _KNOWN, known)
    _broadcast(variables, backend)
    if backend.sees_global_batch:
        # One program draws for all rows, so all processes must hold the same seeds.
        return
    for variable in _seeds(model):
        variable.assign(own_seed(keras.ops.convert_to_numpy(variable), backend.cluster.rank))


def take_chiefs_seeds(model, backend):
    """Ends the workers' own random streams: every worker continues from the chief's."""
    _broadcast(_seeds(model), backend)


def _seeds(model):
    return [variable for variable in model.variables if variable.name == SEED_STATE]


def own_seed(state, rank):
    """Returns the state `[seed, count]` with a seed of its own for each rank; the chief keeps its seed."""
    if rank == 0:
        return state
    seed = np.random.SeedSequence([int(state[0]) & 0xFFFFFFFF, rank]).generate_state(1)[0] >> 1
    return np.array([seed, state[1]]).astype(state.dtype)


def _broadcast(variables, backend):
    for variable, value in zip(variables, broadcast_values(variables, backend), strict=True):
        variable.assign(value)


def broadcast_values(variables, backend):
    """Returns the chief's values of `variables` as NumPy arrays, on every worker; one exchange for all of them."""
    if not variables:
        return []
    own = [np.ascontiguousarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    received = backend.broadcast(np.concatenate([value.reshape(-1).view(np.uint8) for value in own]))
    ends = np.cumsum([value.nbytes for value in own])
    return [
        received[end - value.nbytes : end].view(value.dtype).reshape(variable.shape)
        for variable, value, end in zip(variables, own, ends, strict=True)
    ]
