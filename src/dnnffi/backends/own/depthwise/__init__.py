"""Own kernels for depthwise convolutions, alternatives to the vendor's."""
