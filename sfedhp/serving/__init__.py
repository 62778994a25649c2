"""Uses the saved models of a run, without its data: loads them as modules, and predicts with them."""
