"""What the tests need to read of a Markdown file."""

import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the first line of that in its file."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The name in a first line like `# train.py`: the file in which the reader is to put the block."""
        match = re.match(r"# (\w+\.py)\n", self.text)
        return match[1] if match else None


def blocks(path: pathlib.Path, language: str) -> list[Block]:
    text = path.read_text()
    return [
        Block(match[1], match[2], text[: match.start(2)].count("\n") + 1)
        for match in _FENCED.finditer(text)
        if match[1] == language
    ]


def commands(path: pathlib.Path) -> list[str]:
    """The lines behind a `$` in the blocks of a console."""
    lines = [line for block in blocks(path, "console") for line in block.text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def links(path: pathlib.Path) -> list[str]:
    """The targets of all links that are not addresses of the web."""
    return [target for target in _LINK.findall(_prose(path)) if not re.match(r"https?:|mailto:", target)]


def anchors(path: pathlib.Path) -> set[str]:
    """What a link to a heading of the file has behind its `#`."""
    return {_anchor(heading) for heading in _HEADING.findall(_prose(path))}


def table(path: pathlib.Path, first_header: str) -> list[list[str]]:
    """The cells of all tables of the file whose first column is called so, row by row, without the headers."""
    rows, is_inside = [], False
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            is_inside = False
        elif cells[0] == first_header:
            is_inside = True
        elif is_inside and not set(line) <= set("|- :"):
            rows.append(cells)
    return rows


def names_in(cell: str) -> list[str]:
    """The names in back quotes, without what stands in parentheses behind them."""
    return [name.split("(")[0] for name in re.findall(r"`([^`]+)`", cell)]


def _prose(path: pathlib.Path) -> str:
    return _FENCED.sub("", path.read_text())


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")
