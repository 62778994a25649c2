"""An experiment from its config to its folder: prepare, run, evaluate, record, resume, sweep, newcomers."""
