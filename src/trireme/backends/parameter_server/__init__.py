"""Asynchronous training: what Keras' side of the servers and of their workers has in common for all backends."""

import importlib


def backend_side(name):
    """Returns the module in which the Keras backend `name` does its part. It has these functions:

    - `replace_apply(model, exchange)` makes `model.optimizer.apply`, inside the step, push the gradients and assign the
      values that come back;
    - `replace_steps(model, share)` keeps every part of a step, what counts steps too, from happening before its batch
      is there: asking for the batch after a range reads what the steps of the range have counted. Where workers share
      the batch of an update, `share()` is this worker's part of it, as which training steps weight what stands
      for their batch as a whole; else `share` is None;
    - `look_up(strategy, layer, ids, anchor)` returns rows of a remote layer's table as a tensor through which gradients
      flow;
    - `batches(adapter)` returns the batches of a `RangedArrays` as Keras' trainer iterates over them; TensorFlow's side
      also has `generated(generator, signature)`, for batches that a function yields;
    - `compile_update(optimizer, variables)` returns, for a server, a function that takes a list of arrays, the
      gradients of these variables, makes the optimizer's step and returns the new values as arrays, which later steps
      leave as they are;
    - `values_in_steps(model, variables)` returns the values that the last step left in variables, as arrays.
    """
    return importlib.import_module(f"trireme.backends.{name}.parameter_server")
