"""Privacy: secure aggregation, with which a server learns only sums, and differential privacy."""
