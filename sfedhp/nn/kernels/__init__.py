"""GPU kernels: for linear layers, and for blocks of convolution, norm, ReLU and pooling.

Written with Triton, which comes with torch's builds for CUDA, and compiled when first called. Those for
linear layers are products of few terms together with what comes before and after them; longer products are
left to the libraries made for them.

Those for convolutions are what lies between the matrix products. All of them see units with channels last: a
unit is what shares a norm's statistics, all rows of a client with batch norm, one row with group norm. What
a convolution leaves is raw: without its bias, and with the sign of the norm's gain, so that the norm only
rises and pooling, which lets nothing but the largest pass, can come before it.

`numbers` (units, 5, channels) is how the norm works on a batch: x̂ = raw · numbers₀ + numbers₁, with gain and
offset raw · numbers₂ + numbers₃; numbers₄ is the mean of the raw pixels.
"""
