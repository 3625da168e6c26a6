"""What runs in the pods, and the files a ConfigMap brings them."""

import ast
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trireme.errors import InvalidJob

MAX_BYTES = 1024 * 1024  # what the API server takes in one ConfigMap

_MODULE = re.compile(r"[^\W\d]\w*([.][^\W\d]\w*)*")


@dataclass(frozen=True)
class Source:
    """A script or a module, the files shipped with it, and the arguments it is called with.

    Args:
        target: the script's path below the shipped files, or the module's name.
        arguments: what the script finds in `sys.argv[1:]`.
        is_module: whether `target` is run as `python -m` does.
        is_folder: whether `files` is a folder in which the script is to run.
        files: (path, content) of each shipped file, sorted, the path with `/` and relative.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    is_folder: bool = False
    files: tuple[tuple[str, bytes], ...] = ()


def read_source(
    target: str, arguments: tuple[str, ...] = (), *, is_module: bool = False, folder: str | None = None
) -> Source:
    """What to ship for a script, or for a module, that is run as `trireme run` would run it here.

    A script is shipped alone, or with the whole `folder` it lies in. A module without a `folder` is
    expected in the image. Python's caches and names that begin with a dot are left out of a folder.

    Raises:
        InvalidJob: there is nothing to run, or it is larger than a ConfigMap.
    """
    if is_module and not _MODULE.fullmatch(target):
        raise InvalidJob([f"-m {target!r} is no module's name: expected -m package.module"])
    if folder is not None:
        return _read_folder(Path(folder), target, arguments, is_module)
    if is_module:
        return Source(target, arguments, is_module=True)
    script = _existing_script(target)
    return Source(script.name, arguments, files=_read(script.parent, [script.name], script.stem))


def modules_left_behind(source: Source, script: str) -> list[str]:
    """The modules beside a script that it imports at its top and that are not shipped with it."""
    if source.is_module or source.is_folder:
        return []
    try:
        tree = ast.parse(source.files[0][1])
    except (SyntaxError, ValueError):
        return []
    beside = Path(script).resolve().parent
    names = {name.partition(".")[0] for node in tree.body for name in _imported(node)}
    return sorted(
        name
        for name in names
        if (beside / f"{name}.py").is_file() or (beside / name / "__init__.py").is_file()
    )


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module


def _existing_script(target: str) -> Path:
    script = Path(target)
    if script.is_dir():
        raise InvalidJob(
            [f"{target} is a folder: name a script in it: --folder {target} {script / 'train.py'}"]
        )
    if not script.is_file():
        raise InvalidJob(
            [
                f"there is no script {target} here, from where it is shipped: name a file that exists, or, "
                "for code that is in the image already, a module: -m package.module"
            ]
        )
    return script


def _read_folder(folder: Path, target: str, arguments: tuple[str, ...], is_module: bool) -> Source:
    if not folder.is_dir():
        raise InvalidJob([f"--folder {folder}: there is no such folder here"])
    names = sorted(_names_below(folder))
    if is_module:
        path = target.replace(".", "/")
        if not {f"{path}.py", f"{path}/__main__.py"} & set(names):
            raise InvalidJob([f"-m {target}: expected {path}.py or {path}/__main__.py in --folder {folder}"])
        module = target
    else:
        target = _path_below(folder, _existing_script(target))
        if target not in names:
            raise InvalidJob([f"{target} begins with a dot, and such files are not shipped: rename it"])
        module = target.removesuffix(".py").replace("/", ".")
    return Source(target, arguments, is_module, is_folder=True, files=_read(folder, names, module))


def _path_below(folder: Path, script: Path) -> str:
    try:
        return script.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise InvalidJob(
            [f"{script} is not in --folder {folder}: name the folder that holds it: --folder {script.parent}"]
        ) from None


def _names_below(folder: Path) -> Iterator[str]:
    """The files to ship from a folder, as paths relative to it."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix != ".pyc" and _is_regular(path):
                yield path.relative_to(folder).as_posix()


def _is_regular(path: Path) -> bool:
    """Whether this is a file with content: reading a pipe would wait for ever."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _read(folder: Path, names: list[str], module: str) -> tuple[tuple[str, bytes], ...]:
    """The content of files that a ConfigMap can carry; how to run `module` from an image where it cannot.

    Sizes are looked at first: a folder may hold a data set.
    """
    unnameable = [name for name in names if not _is_text(name)]
    if unnameable:
        raise InvalidJob([f"the file name {name!r} is not UTF-8: rename it" for name in unnameable])
    sizes = {name: (folder / name).stat().st_size for name in names}
    if sum(sizes.values()) > MAX_BYTES:
        raise InvalidJob([_too_large(folder, sizes, module)])
    try:
        return tuple((name, (folder / name).read_bytes()) for name in names)
    except OSError as error:
        raise InvalidJob([f"{error.filename} cannot be read: {error.strerror}"]) from error


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _too_large(folder: Path, sizes: dict[str, int], module: str) -> str:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:3]
    listed = ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in largest)
    return (
        f"the code is {sum(sizes.values()):,} bytes, and a ConfigMap takes {MAX_BYTES:,}; the largest: "
        f"{listed}. Leave out what is no code, or build an image that holds it, by a Dockerfile:\n"
        "        FROM (the image that --image names)\n"
        "        COPY . /app\n"
        "        WORKDIR /app\n"
        f"    then docker build --tag REGISTRY/NAME:TAG --file Dockerfile {folder}\n"
        "    and docker push REGISTRY/NAME:TAG, and run the module that is in it:\n"
        f"        --image REGISTRY/NAME:TAG -m {module}"
    )
