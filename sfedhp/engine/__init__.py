"""How rounds are run: the loop, the roles, all clients at once, or on Ray."""
