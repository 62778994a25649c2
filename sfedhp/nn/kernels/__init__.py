"""GPU kernels for linear layers and for blocks of convolution, norm, ReLU and pooling.

They are written in Triton, which comes with the CUDA builds of torch, and are compiled on their first call.
This package imports no Triton by itself: `available` says whether the kernels can run, and callers import the
kernel modules only then.

`matmul` fuses matrix products of few terms with the operations before and after them. Longer products are
left to torch. The other modules are the operations between the matrix products of a convolutional network:

    im2col → (torch.bmm) → norm_forward.pool_with_moments → norm_forward.norm_coefficients → next block
    norm_backward.pool_grad → .norm_grad_coefficients → .raw_grad → (torch.bmm) → im2col.scatter_weight_grad

Words used in all of them:

- A *unit* is the set of rows that share a norm's statistics: all rows of a client with batch norm, one row
  with group norm. Tensors are (units, rows, height, width, channels), channels last.
- *Raw* outputs are those of the convolution without its bias, times the sign of the norm's gain. The norm is
  then an increasing function of them, so max pooling, which only selects, can come before it.
- A *chunk* is the part of a unit that one program of a kernel works on; sums over a unit are first written as
  one partial sum for each chunk.
"""
