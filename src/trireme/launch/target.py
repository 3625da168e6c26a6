"""Runs what a worker was started for, as plain `python` would have run it."""

import io
import os
import pkgutil
import runpy
import sys
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader

from trireme.launch import call
from trireme.launch.job import CALL, MODULE


@dataclass(frozen=True)
class Target:
    """A script, module or pickled call.

    Attributes:
        kind: `"script"`, `"module"` or `"call"`.
        name: the script's path, the module's name, or the folder of the call.
        arguments: the rest of `sys.argv`.
        is_path_safe: whether the script's folder stays out of `sys.path`.
    """

    kind: str
    name: str
    arguments: tuple[str, ...] = ()
    is_path_safe: bool = False


def run_target(target: Target) -> None:
    """Runs the target as `__main__`. A target that ends itself with success, by `sys.exit()`, returns too."""
    try:
        if target.kind == CALL:
            call.run(target.name)
        elif target.kind == MODULE:
            _run_module(target)
        else:
            _run_script(target)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise


def _run_module(target: Target) -> None:
    sys.argv[:] = ["-m", *target.arguments]
    if not target.is_path_safe:
        sys.path.insert(0, os.getcwd())
    runpy.run_module(target.name, run_name="__main__", alter_sys=True)


def _run_script(target: Target) -> None:
    sys.argv[:] = [target.name, *target.arguments]
    if pkgutil.get_importer(target.name) is not None:
        # A folder or archive with a __main__.py inside; it stays importable when the program changes folders.
        runpy.run_path(os.path.abspath(target.name), run_name="__main__")
        return
    if not target.is_path_safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(target.name)))
    path = os.path.join(os.getcwd(), target.name)
    # `runpy` would put `sys.argv[0]` and `__file__` to one value, and take the module away when it returns,
    # while threads and exit handlers still use it.
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=__builtins__,
    )
    sys.modules["__main__"] = main
    with io.open_code(path) as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))
