"""The subcommands of `sfedhp`, one file each."""
