"""Reading numbers out of environment variables, with everything wrong told in one error."""

from collections.abc import Mapping

from trireme.errors import ConfigurationError


class Reader:
    """Reads the variables of one kind of cluster and collects what is wrong with them.

    Args:
        environ: the environment.
        source: who sets these variables, as the error calls it.
        advice: what to type when something is wrong.
    """

    def __init__(self, environ: Mapping[str, str], source: str, advice: str) -> None:
        self._environ = environ
        self._source = source
        self._advice = advice
        self._problems: list[str] = []

    def text(self, name: str) -> str:
        """The variable's value, which must be there and not be empty."""
        value = self._environ.get(name, "").strip()
        if not value:
            self.wrong(f"{name} is {'empty' if name in self._environ else 'not set'}")
        return value

    def number(self, name: str, minimum: int = 0, default: int | None = None) -> int:
        """The variable as a whole number of at least `minimum`."""
        if default is not None and name not in self._environ:
            return default
        value = self._environ.get(name, "").strip()
        if value.isascii() and value.isdigit() and int(value) >= minimum:
            return int(value)
        seen = f"{value!r}" if name in self._environ else "not set"
        self.wrong(f"{name} is {seen}: expected a whole number of at least {minimum}")
        return minimum

    def place(self, rank_name: str, size_name: str) -> tuple[int, int]:
        """A rank and the number of ranks, with the rank below that number."""
        rank, size = self.number(rank_name), self.number(size_name, minimum=1)
        if rank >= size and not self._problems:
            self.wrong(f"{rank_name} is {rank}, but {size_name} is {size}: expected 0 to {size - 1}")
        return rank, size

    def wrong(self, problem: str) -> None:
        self._problems.append(problem)

    def check(self) -> None:
        """Raises ConfigurationError when anything read so far was wrong."""
        if self._problems:
            lines = [f"The variables of {self._source} describe no cluster:", *self._problems]
            raise ConfigurationError("\n  - ".join(lines) + f"\n{self._advice}")
