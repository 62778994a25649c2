"""Privacy: secure aggregation, where a server learns sums alone; differential privacy and what models leak."""
