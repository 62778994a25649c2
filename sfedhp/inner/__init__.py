"""The inner problem every method solves: gradient steps near an anchor, plain or stacked over clients."""
