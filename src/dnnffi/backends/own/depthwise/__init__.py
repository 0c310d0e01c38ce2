"""What computes a depthwise convolution beside the vendor? Kernels of our own."""
