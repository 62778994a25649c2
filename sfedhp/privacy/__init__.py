"""Privacy: secure aggregation, where a server learns sums alone; differential privacy; what models leak."""
