"""The algorithms, each against its equations and against one another."""
