"""Using the models that a run saved, without its data: load them as modules, predict with them."""
