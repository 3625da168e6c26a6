"""Objects as YAML text that Kubernetes' parser and Python's read alike."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trireme.errors import InvalidJob, UsageError

try:
    import yaml
except ImportError as error:
    raise UsageError(
        "Manifests for Kubernetes are written and read with PyYAML, which is not installed: "
        "pip install 'keras-trireme[kubernetes]'"
    ) from error

# Text that no parser of YAML takes for anything else. `kubectl` reads more words and numbers out of plain
# text than PyYAML does: y, n, 1e3, 0o7.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
# What a literal block keeps: in it, carriage returns and the line separators of Unicode become line feeds.
_LITERAL = re.compile(
    "[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*"
)


def to_yaml(objects: Iterable[dict[str, Any]], header: str = "") -> str:
    """YAML documents in the order given, with a header as a comment on top; equal objects give equal text."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + "---\n".join(_document(item) for item in objects)


def read_overlay(path: str) -> list[dict[str, Any]]:
    """The documents of a user's YAML file.

    Raises:
        InvalidJob: the file is missing, is no YAML, or holds something that is no object.
    """
    try:
        documents = list(yaml.load_all(Path(path).read_text(encoding="utf-8"), Loader=_Loader))
    except OSError as error:
        raise InvalidJob([f"--overlay {path} cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidJob([f"--overlay {path} is no YAML: {' '.join(str(error).split())}"]) from error
    objects = [document for document in documents if document is not None]
    wrong = [document for document in objects if not isinstance(document, dict) or "kind" not in document]
    if wrong or not objects:
        found = f"{wrong[0]!r:.80}" if wrong else "nothing"
        raise InvalidJob(
            [
                f"--overlay {path}: expected objects that name their kind, like "
                f"{{kind: Job, spec: {{...}}}}, and found {found}"
            ]
        )
    return objects


def _document(item: dict[str, Any]) -> str:
    text: str = yaml.dump(
        item, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=2**31
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes several lines as a literal block where that keeps every byte; quotes what looks like data."""

    def analyze_scalar(self, scalar: str) -> Any:
        # PyYAML gives up literal blocks for tabs and for blanks at the ends of lines, which they keep.
        analysis = super().analyze_scalar(scalar)
        analysis.allow_block = analysis.allow_block or _LITERAL.fullmatch(scalar) is not None
        return analysis

    def determine_block_hints(self, text: str) -> str:
        # kubectl looks for the indentation in the first line, and a tab there must not be part of it.
        hints: str = super().determine_block_hints(text)
        return f"{self.best_indent}{hints}" if text.startswith("\t") else hints

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    if "\n" in text and _LITERAL.fullmatch(text):
        style = "|"
    elif _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = ""
    else:
        style = "'" if '"' in text and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Loader(yaml.SafeLoader):
    """Reads dates and times as the text that they are to Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
