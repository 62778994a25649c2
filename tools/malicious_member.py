"""A federation on this machine with one malicious member, while random others are killed.

    python -m tools.malicious_member --minutes 30       what SECURITY.md promises, for half an hour
    python -m tools.malicious_member --minutes 1 --kill-every 0

It ends with exit code 1 if the rounds stop, memory grows, an honest member is left out for longer than it was
down, or the global model is worse than that of the same run without the attacker by more than noise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.support.siege import besiege


def main() -> None:
    """Run it and print what was seen as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds; 0: no kills")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = besiege(Path(folder), 60 * given.minutes, given.kill_every, given.seed)
    print(json.dumps(seen, indent=2))
    sys.exit(1 if seen["wrong"] else 0)


if __name__ == "__main__":
    main()
