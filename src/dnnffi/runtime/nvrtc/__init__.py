"""libnvrtc, the compiler: its C declarations and the calls on them."""
