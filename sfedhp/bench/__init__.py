"""Speed on this machine: the package against a plain client-by-client loop and against other code bases."""
