"""A server process with plain SGD: `python -m tests.parameter_server.server_process OPTIONS` (one JSON object).

Prints its address on the first line of standard output, and what it counted on the last.
"""

import json
import os
import sys

from tests.parameter_server.sgd import SgdUpdater
from trireme.parameter_server import Rules, Saver, ServerKeys, serve

RUN_ID = "test-run"


def main() -> int:
    options = json.loads(sys.argv[1])
    saver = options["directory"] and Saver(
        options["directory"], RUN_ID, options["rank"], options["interval_s"]
    )
    rules = Rules(run_id=RUN_ID, is_chief=options["rank"] == 0, **options["rules"])
    updater = SgdUpdater()
    code = serve(
        options["address"],
        updater,
        rules,
        keys=ServerKeys.from_environ(os.environ),
        saver=saver or None,
        on_listening=lambda address: print(address, flush=True),
    )
    print(json.dumps({"num_steps": updater.num_steps}), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
