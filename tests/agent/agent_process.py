"""An agent whose workers start no backend: `python agent_process.py OPTIONS_AS_JSON TARGET ARGUMENTS...`."""

import json
import os
import pathlib
import sys
from dataclasses import replace

FILE = pathlib.Path(__file__)


def command(target: object, *arguments: str, **options: object) -> list[str]:
    """The command of one agent. The options are those of `plan` and of `settings_of`."""
    return [sys.executable, str(FILE), json.dumps(options), str(target), *arguments]


def main() -> None:
    from trireme.agent.agent import run
    from trireme.agent.settings import settings_of
    from trireme.launch.planning import plan

    options = json.loads(sys.argv[1])
    place = {name: options.pop(name) for name in ("rendezvous", "machines", "machine") if name in options}
    job = plan(sys.argv[2], sys.argv[3:], backend="tensorflow", environ=os.environ, **options)
    sys.exit(run(replace(job, entry="trireme.launch.worker_process"), settings_of(job, os.environ, **place)))


if __name__ == "__main__":
    main()
