"""Run the command `sfedhp` with `python -m sfedhp`."""

from sfedhp.cli import main

if __name__ == "__main__":
    main(prog_name="sfedhp")
