"""Runs rounds: the loop of servers, the roles, the simulator, and Ray."""
