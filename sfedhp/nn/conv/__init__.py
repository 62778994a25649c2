"""Stacked convolutional networks with a forward and backward pass written by hand."""
