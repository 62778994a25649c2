"""Networks as functions of flat vectors: models, forward and backward passes, a client's task."""
