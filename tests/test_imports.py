"""Who imports whom, what is public, and that `import trireme` costs next to nothing."""

import ast
import dataclasses
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator

import pytest

import trireme

SOURCE = pathlib.Path(trireme.__file__).parent
PROJECT = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

# errors <- cluster <- data, parameter_server <- backends <- strategies
# recovery <- backends <- callbacks
# errors, cluster <- recovery <- launch <- agent <- cli
# A strategy that needs several processes hands over to the launcher.
MAY_IMPORT = {
    "errors": set(),
    "cluster": {"errors"},
    "data": {"errors", "cluster"},
    "backends": {"errors", "cluster", "data", "parameter_server", "recovery"},
    "callbacks": {"backends"},
    "parameter_server": {"errors", "cluster"},
    "recovery": {"errors", "cluster"},
    "launch": {"errors", "cluster", "recovery"},
    "strategies": {"errors", "cluster", "data", "backends", "parameter_server", "recovery", "launch"},
    "agent": {"errors", "cluster", "recovery", "launch"},
    "cli": {"errors", "cluster", "recovery", "launch", "agent", "__init__"},
    "__init__": {"errors", "cluster", "launch", "parameter_server", "strategies", "callbacks"},
    "__main__": {"cli"},
}
# The first module of a worker process starts the backend, so it imports one: inside functions. That of a server is
# Keras' too, and only a launcher of servers makes keys.
MAY_IMPORT_LAZILY = {
    "launch.bootstrap": {"backends", "strategies", "parameter_server", "testing"},
    "launch.kubernetes.keys": {"parameter_server"},
    "launch.server_process": {"backends", "parameter_server"},
    "launch.servers": {"parameter_server"},
}

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
WITHOUT_FRAMEWORKS = MAY_IMPORT.keys() - {"data", "backends", "strategies"}


@dataclasses.dataclass(frozen=True)
class Import:
    importer: str  # "launch.job"
    imported: str  # "trireme.cluster.board", "keras.src.losses"
    is_lazy: bool  # inside a function, or for the type checker only
    line: int

    @property
    def part(self) -> str:
        return self.importer.split(".")[0]

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports_of(path: pathlib.Path) -> Iterator[Import]:
    importer = module_name(path)
    return walk(importer, ast.parse(path.read_text()), is_lazy=False)


def walk(importer: str, node: ast.AST, is_lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(importer, alias.name, is_lazy, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer}:{node.lineno}: write the whole name, `from trireme... import`"
        for alias in node.names:
            yield Import(importer, f"{node.module}.{alias.name}", is_lazy, node.lineno)
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        yield from walk(importer, child, is_lazy or is_function or is_for_types)


IMPORTS = [one for path in sorted(SOURCE.rglob("*.py")) for one in imports_of(path)]


def imported_part(one: Import) -> str | None:
    """The part of Trireme that is imported, or None for other packages."""
    names = one.imported.split(".")
    if names[0] != "trireme":
        return None
    is_part = len(names) > 1 and names[1] in MAY_IMPORT.keys() | {"testing"}
    return names[1] if is_part else "__init__"


def test_every_part_has_its_place():
    parts = {one.part for one in IMPORTS}
    assert parts <= MAY_IMPORT.keys() | {"testing"}, "say in MAY_IMPORT what the new part may import"


def test_directions():
    wrong = []
    for one in IMPORTS:
        part = imported_part(one)
        allowed = MAY_IMPORT.get(one.part, set()) | {one.part}
        if one.is_lazy:
            allowed |= MAY_IMPORT_LAZILY.get(one.importer, set())
        if part is not None and one.part != "testing" and part not in allowed:
            wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_no_framework_where_none_belongs():
    wrong = [
        str(one)
        for one in IMPORTS
        if one.imported.split(".")[0] in FRAMEWORKS and one.part in WITHOUT_FRAMEWORKS
    ]
    assert not wrong, "\n".join(wrong)


def test_only_backends_touch_what_keras_keeps_private():
    wrong = [str(one) for one in IMPORTS if one.imported.startswith("keras.src") and one.part != "backends"]
    assert not wrong, "\n".join(wrong)


def test_every_imported_package_is_a_declared_dependency():
    extras = PROJECT["optional-dependencies"]
    requirements = PROJECT["dependencies"] + [
        requirement for name, extra in extras.items() if name != "test" for requirement in extra
    ]
    import_names = {"pyzmq": "zmq", "pyyaml": "yaml", "ml-dtypes": "ml_dtypes"}
    declared = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}
    known = {import_names.get(name, name) for name in declared} | sys.stdlib_module_names | {"trireme"}
    undeclared = [str(one) for one in IMPORTS if one.imported.split(".")[0] not in known]
    assert not undeclared, "\n".join(undeclared)


def test_every_extra_that_a_message_names_exists():
    named = {
        extra
        for path in SOURCE.rglob("*.py")
        for extra in re.findall(r"keras-trireme\[([\w-]+)\]", path.read_text())
    }
    assert named <= PROJECT["optional-dependencies"].keys()


def test_importing_trireme_imports_nothing_heavy():
    code = "import json, sys, trireme; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = FRAMEWORKS | {"numpy", "rich", "click", "cloudpickle", "zmq", "yaml"}
    assert not heavy & set(json.loads(result.stdout))


def test_all_is_what_is_visible():
    visible = {
        name
        for name, value in vars(trireme).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert visible | {"__version__"} == set(trireme.__all__)
    assert len(trireme.__all__) == len(set(trireme.__all__))


PAGES = [path for path in sorted(SOURCE.rglob("__init__.py")) if "__all__" in path.read_text()]


@pytest.mark.parametrize("path", PAGES, ids=module_name)
def test_a_package_exports_its_own_public_names(path):
    """Read rather than imported: the backends would bring their frameworks."""
    package = f"trireme.{module_name(path)}".removesuffix(".__init__")
    own, exported = set(), None
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            own |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign):
            own |= {target.id for target in node.targets}
    assert exported is not None, f"{path} mentions __all__ and does not set it to a list of names"
    assert len(exported) == len(set(exported))
    assert {name for name in own if not name.startswith("_")} == set(exported) - {"__version__"}


def statements(module: ast.Module) -> Iterator[ast.stmt]:
    """Those at module level, with what is imported for the type checker only and loaded on demand."""
    for node in module.body:
        yield from node.body if isinstance(node, ast.If) else [node]


def test_launch_is_the_function_whatever_was_imported_before():
    code = """
import trireme.launch.job
import trireme
from trireme.launch.job import Job
from trireme.launch import job
assert callable(trireme.launch) and trireme.launch.__name__ == "launch", trireme.launch
assert job.Job is Job
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert importlib.import_module("trireme.launch.job").__name__ == "trireme.launch.job"
