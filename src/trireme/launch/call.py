"""A pickled function call: written by the process that wants its results, carried out by every worker."""

import contextlib
import io
import linecache
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trireme.cluster.resolve import resolve

_CALL = "call.pickle"


def write(folder: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Leaves the call in the folder.

    A function goes by value, with all it refers to in its module, where the workers could not import it:
    from `__main__`, a notebook, a test module. All others go by name.
    """
    with _by_value(_module_of(function)):
        pickled = _pickled((function, tuple(args), dict(kwargs)))
    _write_whole(os.path.join(folder, _CALL), pickle.dumps((list(sys.path), _source(function), pickled)))


def run(folder: str) -> None:
    """Carries out the call, in a worker, and leaves its result in the folder."""
    with open(os.path.join(folder, _CALL), "rb") as file:
        path, source, pickled = pickle.load(file)
    sys.path[:] = path
    linecache.cache.update(source)
    sys.argv[1:] = []
    function, args, kwargs = pickle.loads(pickled)
    result = function(*args, **kwargs)
    try:
        pickled = _pickled(result)
    except Exception as error:
        raise TypeError(
            f"The function returned a {type(result).__qualname__} that cannot be pickled, so it cannot leave "
            f"its process: {error}. Return numbers, arrays or what is made of them."
        ) from error
    _write_whole(_result_path(folder, resolve(os.environ).rank), pickled)


def read_result(folder: str, rank: int) -> Any:
    """What the function returned in one worker."""
    with open(_result_path(folder, rank), "rb") as file:
        return pickle.load(file)


def _result_path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"result-{rank}.pickle")


def _write_whole(path: str, content: bytes) -> None:
    with open(f"{path}.part", "wb") as file:
        file.write(content)
    os.replace(f"{path}.part", path)


def _pickled(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        # cloudpickle forgets the file names of code, without which tracebacks have no lines and whoever
        # compiles a function from its source, as TensorFlow does, does not find it.
        dispatch_table = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    import cloudpickle

    reduced = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _code_in_file, (code.co_filename, *reduced)


def _code_in_file(filename: str, make: Callable[..., types.CodeType], parts: Sequence[Any]) -> types.CodeType:
    return make(*parts).replace(co_filename=filename)


def _source(function: Callable[..., Any]) -> dict[str, Any]:
    """The source of a function that stands in no file, a notebook's cell, for the worker's tracebacks."""
    code = getattr(_innermost(function), "__code__", None)
    if code is None or os.path.exists(code.co_filename):
        return {}
    lines = linecache.getlines(code.co_filename)
    return {code.co_filename: (sum(map(len, lines)), None, lines, code.co_filename)} if lines else {}


def _module_of(function: Callable[..., Any]) -> types.ModuleType | None:
    function = _innermost(function)
    name = getattr(function, "__module__", None) or type(function).__module__
    return sys.modules.get(name)


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside `functools.partial`s."""
    while hasattr(function, "func"):
        function = function.func
    return function


@contextlib.contextmanager
def _by_value(module: types.ModuleType | None) -> Iterator[None]:
    import cloudpickle

    registered = cloudpickle.list_registry_pickle_by_value()
    if module is None or module.__name__ in registered or _is_importable(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: types.ModuleType) -> bool:
    """Whether a worker, with the same `sys.path`, would import the same module under that name."""
    if module.__name__ == "__main__" or _is_test(module.__name__):
        return False
    return _is_found(module.__name__)


def _is_found(name: str) -> bool:
    """Whether an import would find the module if it were not loaded already."""
    parent = name.rpartition(".")[0]
    if parent and not (parent in sys.modules and _is_found(parent)):
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    return any(finder.find_spec(name, path) is not None for finder in sys.meta_path)


def _is_test(name: str) -> bool:
    """Whether pytest collected the module, which a worker would have to load with all that pytest is."""
    last = name.rpartition(".")[2]
    return "_pytest" in sys.modules and (
        last.startswith("test_") or last.endswith("_test") or last == "conftest"
    )
