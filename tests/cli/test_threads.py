"""How threads wait for each other."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "used"), [(None, "30000"), ("7", "7")])
def test_threads_spin_briefly_unless_the_user_says_otherwise(given, used):
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if given is None else {"GOMP_SPINCOUNT": given}
    code = "import sys, os, sfedhp.cli; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [used, "False"]
